"""Usage chain: one link for each line that a tenant can check, and the queue of lines not yet linked."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0009"
down_revision = "20261201_0008"
branch_labels = None
depends_on = None

UP = """
-- A tenant's lines in the order in which they were sealed, numbered within each day from 1 without gaps.
-- hash: of `previous` and the line. previous: the hash before it in the day, else the day's genesis.
-- line_id names an event or a correction. No foreign key: its lock would write to every event again.
CREATE TABLE usage_link (
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  day date NOT NULL,
  sequence bigint NOT NULL CHECK (sequence >= 1),
  kind text NOT NULL CHECK (kind IN ('event', 'correction')),
  line_id text COLLATE "C" NOT NULL UNIQUE,
  previous bytea NOT NULL CHECK (length(previous) = 32),
  hash bytea NOT NULL CHECK (length(hash) = 32),
  PRIMARY KEY (tenant_id, day, sequence)
);
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON usage_link FOR EACH ROW EXECUTE FUNCTION forbid_change();
CREATE TRIGGER stays BEFORE TRUNCATE ON usage_link FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- What waits to be sealed: a row for each statement that posted, not for each event, because the settler
-- pays for it. It is in the posting's own transaction, so one that commits late can't be missed.
CREATE TABLE usage_unsealed (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL CHECK (kind IN ('event', 'correction')),
  posted_at timestamptz NOT NULL,
  line_ids text[] NOT NULL
);
ALTER TABLE usage_unsealed ALTER COLUMN line_ids SET STORAGE EXTERNAL;
CREATE FUNCTION usage_event_to_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_unsealed (kind, posted_at, line_ids)
    SELECT 'event', posted_at, array_agg(request_id) FROM posted GROUP BY posted_at;
  RETURN NULL;
END $$;
CREATE TRIGGER to_seal AFTER INSERT ON usage_event REFERENCING NEW TABLE AS posted
  FOR EACH STATEMENT EXECUTE FUNCTION usage_event_to_seal();
CREATE FUNCTION usage_correction_to_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_unsealed (kind, posted_at, line_ids)
    SELECT 'correction', at, array_agg(id) FROM posted GROUP BY at;
  RETURN NULL;
END $$;
CREATE TRIGGER to_seal AFTER INSERT ON usage_correction REFERENCING NEW TABLE AS posted
  FOR EACH STATEMENT EXECUTE FUNCTION usage_correction_to_seal();
INSERT INTO usage_unsealed (kind, posted_at, line_ids)
  SELECT 'event', posted_at, array_agg(request_id) FROM usage_event GROUP BY posted_at
  UNION ALL SELECT 'correction', at, array_agg(id) FROM usage_correction GROUP BY at;

DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT ON usage_link TO steelyard_app;
    GRANT SELECT, INSERT, DELETE ON usage_unsealed TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DROP TRIGGER to_seal ON usage_correction;
DROP TRIGGER to_seal ON usage_event;
DROP FUNCTION usage_correction_to_seal, usage_event_to_seal;
DROP TABLE usage_unsealed, usage_link;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
