"""Tasks, what a refusal lacked, and what becomes of a suspended tenant's streams."""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0015"
down_revision = "20261201_0014"
branch_labels = None
depends_on = None

UP = """
-- A piece of work of a client, named by it: its requests have one bill and, if it says so, one budget.
-- declared: the budget that its first request told; budget: what it is now.
-- spent_before: what it had cost when it was given a budget; the allowance's limit is budget - spent_before.
CREATE TABLE task (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  project_id text COLLATE "C" NOT NULL REFERENCES project,
  name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  declared picos CHECK (declared >= 0),
  budget picos CHECK (budget >= 0),
  spent_before picos NOT NULL DEFAULT 0 CHECK (spent_before >= 0),
  allowance_id text COLLATE "C" UNIQUE REFERENCES allowance DEFERRABLE INITIALLY DEFERRED,
  status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by_key text COLLATE "C",
  closed_at timestamptz,
  UNIQUE (project_id, name),
  CHECK ((budget IS NULL) = (allowance_id IS NULL)),
  CHECK ((status = 'closed') = (closed_at IS NOT NULL))
);
CREATE INDEX task_by_tenant ON task (tenant_id, id);
CREATE TRIGGER tell AFTER UPDATE ON task FOR EACH ROW EXECUTE FUNCTION notify_change();

-- The task of this name, made if it is new: then p_budget (or none) is its budget for good. Idempotent, and
-- whoever comes second, at once or later, gets what the first one made.
CREATE FUNCTION quota_open_task(
  p_id text, p_tenant text, p_project text, p_key text, p_name text, p_budget numeric, p_allowance text
) RETURNS TABLE (id text, allowance_id text, declared text, budget text, status text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_allowance text := CASE WHEN p_budget IS NOT NULL THEN p_allowance END;
BEGIN
  RETURN QUERY SELECT t.id, t.allowance_id, t.declared::text, t.budget::text, t.status FROM task t
    WHERE t.project_id = p_project AND t.name = p_name;
  IF FOUND THEN
    RETURN;
  END IF;
  INSERT INTO task (id, tenant_id, project_id, name, declared, budget, allowance_id, created_by_key)
  VALUES (p_id, p_tenant, p_project, p_name, p_budget, p_budget, v_allowance, p_key)
  ON CONFLICT (project_id, name) DO NOTHING;
  IF FOUND AND v_allowance IS NOT NULL THEN
    INSERT INTO allowance (id, tenant_id, scope_kind, scope_id, what, window_kind, limit_amount)
    VALUES (v_allowance, p_tenant, 'task', p_id, 'picos', 'balance', p_budget);
  END IF;
  RETURN QUERY SELECT t.id, t.allowance_id, t.declared::text, t.budget::text, t.status FROM task t
    WHERE t.project_id = p_project AND t.name = p_name;
END $$;

ALTER TABLE usage_event ADD COLUMN task_id text COLLATE "C";
CREATE INDEX usage_event_by_task ON usage_event (task_id, request_id) WHERE task_id IS NOT NULL;

-- Which limit a refusal was for, and its numbers as texts: scope, window, unit, needed, available, resets_at.
ALTER TABLE refusal ADD COLUMN allowance_id text COLLATE "C", ADD COLUMN facts jsonb;
CREATE INDEX refusal_by_allowance ON refusal (allowance_id, at) WHERE allowance_id IS NOT NULL;

-- Whether a request that asks for more output than a limit leaves is given less, and told so, or refused.
ALTER TABLE project ADD COLUMN clamp_output boolean NOT NULL DEFAULT false;
ALTER TABLE tenant ADD COLUMN on_suspend text NOT NULL DEFAULT 'finish' CHECK (on_suspend IN ('finish', 'cut'));

DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT ON task TO steelyard_app;
    GRANT UPDATE (budget, spent_before, allowance_id, status, closed_at) ON task TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
ALTER TABLE tenant DROP COLUMN on_suspend;
ALTER TABLE project DROP COLUMN clamp_output;
DROP INDEX refusal_by_allowance;
ALTER TABLE refusal DROP COLUMN facts, DROP COLUMN allowance_id;
DROP INDEX usage_event_by_task;
ALTER TABLE usage_event DROP COLUMN task_id;
DROP FUNCTION quota_open_task;
DROP TABLE task;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
