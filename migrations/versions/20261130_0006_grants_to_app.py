"""Grants to the role of the running processes, if it exists: they add, and change only what isn't history."""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0006"
down_revision = "20261130_0005"
branch_labels = None
depends_on = None

UP = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO steelyard_app;
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO steelyard_app;
    REVOKE UPDATE, DELETE ON
      alembic_version, audit_log, ledger_account, ledger_transaction, ledger_entry, wallet_grant,
      usage_event, refusal, usage_conflict, parked_record
      FROM steelyard_app;
    REVOKE INSERT ON alembic_version FROM steelyard_app;
    GRANT UPDATE (resolved_at) ON parked_record TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    REVOKE ALL ON ALL TABLES IN SCHEMA public FROM steelyard_app;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM steelyard_app;
  END IF;
END $$;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
