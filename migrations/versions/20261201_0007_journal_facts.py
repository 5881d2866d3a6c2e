"""Facts of the journal: an event's prompts and answers, who resolved a parked record, damaged files."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0007"
down_revision = "20261130_0006"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE usage_event
  ADD COLUMN choices smallint NOT NULL DEFAULT 1 CHECK (choices >= 1),
  ADD COLUMN prompts integer NOT NULL DEFAULT 1 CHECK (prompts >= 1);

-- A foreign key looks up its row for each event, a third of what an insert costs; a batch names few tenants
-- and versions, which are never deleted, so they are looked up once a statement. Of the ledger transaction,
-- which is posted after the events in the same transaction, reconciliation proves what its key did.
CREATE FUNCTION usage_event_known() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_unknown text;
BEGIN
  SELECT f.id INTO v_unknown FROM (SELECT DISTINCT tenant_id AS id FROM fresh) f
    WHERE NOT EXISTS (SELECT FROM tenant t WHERE t.id = f.id) LIMIT 1;
  IF v_unknown IS NULL THEN
    SELECT f.id INTO v_unknown FROM (SELECT DISTINCT price_version_id AS id FROM fresh) f
      WHERE NOT EXISTS (SELECT FROM price_version v WHERE v.id = f.id) LIMIT 1;
  END IF;
  IF v_unknown IS NOT NULL THEN
    RAISE EXCEPTION 'a usage event names %, which is not there', v_unknown USING ERRCODE = 'foreign_key_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER known AFTER INSERT ON usage_event REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION usage_event_known();
ALTER TABLE usage_event
  DROP CONSTRAINT usage_event_tenant_id_fkey,
  DROP CONSTRAINT usage_event_price_version_id_fkey,
  DROP CONSTRAINT usage_event_transaction_id_fkey;

-- Room in each page for the sums that are written again with every batch.
ALTER TABLE usage_rollup SET (fillfactor = 60);

-- How a parked record left the list. Until here there was one way: it was posted.
ALTER TABLE parked_record
  ADD COLUMN resolution text CHECK (resolution IN ('posted', 'dismissed')),
  ADD COLUMN resolved_by text COLLATE "C",
  ADD COLUMN resolved_because text;
UPDATE parked_record SET resolution = 'posted' WHERE resolved_at IS NOT NULL;
ALTER TABLE parked_record
  ADD CONSTRAINT parked_record_resolved CHECK ((resolved_at IS NULL) = (resolution IS NULL)),
  ADD CONSTRAINT parked_record_dismissed CHECK (
    resolution <> 'dismissed' OR (resolved_by IS NOT NULL AND resolved_because IS NOT NULL));

-- Bytes of a journal that no writer wrote. What its incarnation spent there nobody knows: it stays open, its
-- leases counted, until an operator releases it.
CREATE TABLE journal_damage (
  incarnation_id text COLLATE "C" NOT NULL,
  file_offset bigint NOT NULL CHECK (file_offset >= 0),
  byte_count bigint NOT NULL CHECK (byte_count > 0),
  found_at timestamptz NOT NULL,
  released_at timestamptz,
  released_by text COLLATE "C",
  released_because text,
  PRIMARY KEY (incarnation_id, file_offset),
  CHECK ((released_at IS NULL) = (released_by IS NULL) AND (released_at IS NULL) = (released_because IS NULL))
);

DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT ON journal_damage TO steelyard_app;
    GRANT UPDATE (released_at, released_by, released_because) ON journal_damage TO steelyard_app;
    GRANT UPDATE (resolution, resolved_by, resolved_because) ON parked_record TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DROP TABLE journal_damage;
ALTER TABLE parked_record
  DROP CONSTRAINT parked_record_dismissed,
  DROP CONSTRAINT parked_record_resolved,
  DROP COLUMN resolved_because,
  DROP COLUMN resolved_by,
  DROP COLUMN resolution;
ALTER TABLE usage_rollup RESET (fillfactor);
DROP TRIGGER known ON usage_event;
DROP FUNCTION usage_event_known;
ALTER TABLE usage_event
  ADD CONSTRAINT usage_event_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenant,
  ADD CONSTRAINT usage_event_price_version_id_fkey FOREIGN KEY (price_version_id) REFERENCES price_version,
  ADD CONSTRAINT usage_event_transaction_id_fkey FOREIGN KEY (transaction_id) REFERENCES ledger_transaction
    DEFERRABLE INITIALLY DEFERRED,
  DROP COLUMN prompts,
  DROP COLUMN choices;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
