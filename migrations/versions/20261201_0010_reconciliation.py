"""Reconciliation: what engines counted, day by day against the events, and every gap between the books."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0010"
down_revision = "20261201_0009"
branch_labels = None
depends_on = None

READINGS = """
-- One scrape of an engine's counters, as cumulated since its process began. NULL: it did not say, which is not 0.
-- process: what tells one engine process from the next. prompt is counted with its cached part.
CREATE TABLE engine_reading (
  backend_id text COLLATE "C" NOT NULL REFERENCES backend,
  at timestamptz NOT NULL,
  process text,
  prompt bigint CHECK (prompt >= 0),
  cached bigint CHECK (cached >= 0),
  generated bigint CHECK (generated >= 0),
  finished bigint CHECK (finished >= 0),
  PRIMARY KEY (backend_id, at)
);

-- A backend's day (UTC) against its events, in tokens: what the engine counted between two readings, what the
-- events say it should have, and the room that each kind of event leaves between. Final once nothing can come late.
CREATE TABLE engine_day (
  day date NOT NULL,
  backend_id text COLLATE "C" NOT NULL REFERENCES backend,
  meter text NOT NULL CHECK (meter IN ('prompt', 'generated')),
  model_id text COLLATE "C" NOT NULL REFERENCES model,
  model_name text NOT NULL,
  state text NOT NULL CHECK (state IN ('reconciled', 'unattributed', 'missing_at_engine', 'unknown')),
  begins_at timestamptz,
  ends_at timestamptz,
  readings integer NOT NULL CHECK (readings >= 0),
  restarts integer NOT NULL CHECK (restarts >= 0),
  counted bigint,
  recorded bigint NOT NULL,
  billed bigint NOT NULL,
  explained jsonb NOT NULL,
  unexplained bigint,
  requests bigint NOT NULL,
  lost bigint NOT NULL,
  is_final boolean NOT NULL,
  computed_at timestamptz NOT NULL,
  PRIMARY KEY (day, backend_id, meter),
  CHECK ((state = 'unknown') = (counted IS NULL)),
  CHECK ((counted IS NULL) = (unexplained IS NULL)),
  CHECK ((state = 'reconciled') = (coalesce(unexplained, 1) = 0))
);
CREATE INDEX engine_day_by_backend ON engine_day (backend_id, day);

CREATE FUNCTION final_day_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.is_final OR TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'history stands: % on a day of % is not allowed', TG_OP, TG_TABLE_NAME
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON engine_day FOR EACH ROW EXECUTE FUNCTION final_day_stands();
CREATE TRIGGER stays BEFORE TRUNCATE ON engine_day FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- A reading never changes, and goes only when its day's sum is final.
CREATE FUNCTION reading_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND EXISTS (SELECT FROM engine_day d WHERE d.backend_id = OLD.backend_id
      AND d.day = (OLD.at AT TIME ZONE 'UTC')::date AND d.is_final) THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'history stands: % on engine_reading before its day is final', TG_OP
    USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON engine_reading FOR EACH ROW EXECUTE FUNCTION reading_stands();
CREATE TRIGGER stays BEFORE TRUNCATE ON engine_reading FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
"""

GAPS = """
-- When a pair of books was last proven. day: the UTC day that was looked at; NULL: of pairs that stand by themselves.
CREATE TABLE reconcile_proof (
  pair text NOT NULL,
  day date,
  proven_at timestamptz NOT NULL,
  scanned bigint NOT NULL CHECK (scanned >= 0),
  gaps integer NOT NULL CHECK (gaps >= 0),
  took_ms integer NOT NULL CHECK (took_ms >= 0),
  UNIQUE NULLS NOT DISTINCT (pair, day)
);

-- Where two books differ. It is never deleted: once a later proof no longer finds it, it is resolved. What a
-- person has looked into and can't be mended is acknowledged, as long as it stays what it was.
CREATE TABLE reconcile_gap (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pair text NOT NULL,
  day date,
  scope text COLLATE "C" NOT NULL,
  tenant_id text COLLATE "C",
  backend_id text COLLATE "C",
  model_id text COLLATE "C",
  unit text NOT NULL CHECK (unit IN ('picos', 'tokens', 'records')),
  kind text NOT NULL,
  left_value numeric(38, 0),
  right_value numeric(38, 0),
  explanation text NOT NULL,
  first_seen_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  resolved_at timestamptz,
  acknowledged_at timestamptz,
  acknowledged_by text COLLATE "C",
  acknowledged_because text,
  CHECK ((acknowledged_at IS NULL) = (acknowledged_by IS NULL)
    AND (acknowledged_at IS NULL) = (acknowledged_because IS NULL))
);
CREATE UNIQUE INDEX reconcile_gap_open ON reconcile_gap (pair, day, scope, unit, kind) NULLS NOT DISTINCT
  WHERE resolved_at IS NULL;
CREATE INDEX reconcile_gap_by_day ON reconcile_gap (day, id);
"""

GRANTS = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT, DELETE ON engine_reading TO steelyard_app;
    GRANT SELECT, INSERT, UPDATE ON engine_day, reconcile_proof TO steelyard_app;
    GRANT SELECT, INSERT ON reconcile_gap TO steelyard_app;
    GRANT UPDATE (left_value, right_value, explanation, last_seen_at, resolved_at, acknowledged_at,
      acknowledged_by, acknowledged_because) ON reconcile_gap TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DROP TABLE reconcile_gap, reconcile_proof, engine_day, engine_reading;
DROP FUNCTION reading_stands, final_day_stands;
"""


def upgrade() -> None:
    for script in (READINGS, GAPS, GRANTS):
        run(script)


def downgrade() -> None:
    run(DOWN)
