"""Facts of the journal: how many prompts and answers an event counts, and who resolved a parked record."""

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
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT UPDATE (resolution, resolved_by, resolved_because) ON parked_record TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
ALTER TABLE parked_record
  DROP CONSTRAINT parked_record_dismissed,
  DROP CONSTRAINT parked_record_resolved,
  DROP COLUMN resolved_because,
  DROP COLUMN resolved_by,
  DROP COLUMN resolution;
ALTER TABLE usage_event DROP COLUMN prompts, DROP COLUMN choices;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
