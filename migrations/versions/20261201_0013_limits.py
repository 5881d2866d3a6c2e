"""Limits as data: plans, overrides, and the allowances that they resolve to.

An allowance is one limit in one period. Whoever changes what a tenant's limits follow from (plan, assignment,
override, scope) calls `quota_resolve` in the same transaction; what was to change later is turned when due.
"""

from __future__ import annotations

from pathlib import Path

from migrations.sql import run

revision = "20261201_0013"
down_revision = "20261201_0012"
branch_labels = None
depends_on = None

SCRIPTS = Path(__file__).parent.parent / "scripts"

ALLOWANCES = """
-- Which amounts are counted in which windows. balance: for good. minute: a rate. running: what is out at once.
-- request: a ceiling on one request, read and never lent.
CREATE FUNCTION limit_counts(p_what text, p_window text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN p_window IN ('day', 'week', 'month') THEN
      p_what IN ('picos', 'tokens', 'input_tokens', 'output_tokens', 'requests')
    WHEN p_window = 'minute' THEN p_what IN ('tokens', 'input_tokens', 'output_tokens', 'requests')
    WHEN p_window = 'running' THEN p_what = 'concurrent'
    WHEN p_window = 'request' THEN p_what IN ('max_output', 'max_context')
    ELSE false END
$$;

-- limit_amount: of a rate, per minute. burst: a rate's capacity. level_micros: what a rate's bucket held at level_at,
-- in millionths. [period_start, period_end): of a calendar window, never changed. limit_source: 'plan:…' or
-- 'override:…'; NULL: a wallet's or a task's. ended_at: the limit no longer holds; its row and what it counted stay.
ALTER TABLE allowance
  DROP CONSTRAINT allowance_what_check,
  DROP CONSTRAINT allowance_window_kind_check,
  DROP CONSTRAINT allowance_scope_kind_scope_id_what_window_kind_key,
  ADD COLUMN model_id text COLLATE "C" REFERENCES model,
  ADD COLUMN burst picos CHECK (burst >= 0),
  ADD COLUMN level_micros picos,
  ADD COLUMN level_at timestamptz,
  ADD COLUMN period_start timestamptz,
  ADD COLUMN period_end timestamptz CHECK (period_end > period_start),
  ADD COLUMN limit_source text,
  ADD COLUMN ended_at timestamptz,
  ADD CONSTRAINT allowance_counts CHECK (
    window_kind = 'balance' AND what IN ('picos', 'tokens', 'requests', 'concurrent')
    OR limit_counts(what, window_kind)),
  ADD CONSTRAINT allowance_rate CHECK (
    num_nonnulls(burst, level_micros, level_at) = CASE window_kind WHEN 'minute' THEN 3 ELSE 0 END),
  ADD CONSTRAINT allowance_period CHECK (
    num_nonnulls(period_start, period_end) = CASE WHEN window_kind IN ('day', 'week', 'month') THEN 2 ELSE 0 END),
  ADD CONSTRAINT allowance_is_one UNIQUE NULLS NOT DISTINCT
    (scope_kind, scope_id, model_id, what, window_kind, period_start);
CREATE INDEX allowance_limits ON allowance (tenant_id, coalesce(period_end, 'infinity')) WHERE limit_source IS NOT NULL;
CREATE INDEX allowance_periods ON allowance (tenant_id, window_kind, period_end) WHERE period_end IS NOT NULL;
"""

PLANS = """
-- A set of limits, and perhaps a price book. currency: that of its amounts of money; NULL: it has none.
CREATE TABLE plan (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  description text NOT NULL DEFAULT '',
  currency text CHECK (currency ~ '^[A-Z]{3}$'),
  price_book_id text COLLATE "C" REFERENCES price_book,
  created_at timestamptz NOT NULL DEFAULT now(),
  archived_at timestamptz,
  CHECK (price_book_id IS NULL OR currency IS NOT NULL)
);

-- level: for the tenant as a whole, for each of its projects, for each of its keys.
CREATE TABLE plan_limit (
  plan_id text COLLATE "C" NOT NULL REFERENCES plan,
  level text NOT NULL CHECK (level IN ('tenant', 'project', 'key')),
  model_id text COLLATE "C" REFERENCES model,
  what text NOT NULL,
  window_kind text NOT NULL,
  amount picos NOT NULL CHECK (amount >= 0),
  burst picos CHECK (burst IS NULL OR burst >= 0 AND window_kind = 'minute'),
  UNIQUE NULLS NOT DISTINCT (plan_id, level, model_id, what, window_kind),
  CHECK (limit_counts(what, window_kind))
);

-- [effective_from, effective_to): a tenant has one plan at a time, or none.
CREATE TABLE plan_assignment (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  plan_id text COLLATE "C" NOT NULL REFERENCES plan,
  effective_from timestamptz NOT NULL,
  effective_to timestamptz,
  created_by text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (effective_to > effective_from),
  EXCLUDE USING gist (tenant_id WITH =, tstzrange(effective_from, effective_to) WITH &&)
);
CREATE INDEX plan_assignment_by_plan ON plan_assignment (plan_id);

-- Stands in a plan's place for one limit of one scope, in [effective_from, expires_at); the newest of several
-- counts. amount NULL: no limit. In the currency of its tenant.
CREATE TABLE limit_override (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  scope_kind text NOT NULL CHECK (scope_kind IN ('tenant', 'project', 'key')),
  scope_id text COLLATE "C" NOT NULL,
  model_id text COLLATE "C" REFERENCES model,
  what text NOT NULL,
  window_kind text NOT NULL,
  amount picos CHECK (amount >= 0),
  burst picos CHECK (burst IS NULL OR burst >= 0 AND window_kind = 'minute' AND amount IS NOT NULL),
  effective_from timestamptz NOT NULL,
  expires_at timestamptz,
  reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
  created_by text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz,
  CHECK (expires_at > effective_from),
  CHECK (limit_counts(what, window_kind))
);
CREATE INDEX limit_override_by_tenant ON limit_override (tenant_id, id);
CREATE INDEX limit_override_in_use ON limit_override (tenant_id) WHERE revoked_at IS NULL;

-- Whoever resolves a tenant's limits locks its row. version: grows with each change of them. next_change_at: when
-- they change by themselves, or a period has to be opened.
CREATE TABLE tenant_limits (
  tenant_id text COLLATE "C" PRIMARY KEY REFERENCES tenant,
  version bigint NOT NULL DEFAULT 0,
  next_change_at timestamptz
);
CREATE INDEX tenant_limits_due ON tenant_limits (next_change_at) WHERE next_change_at IS NOT NULL;
INSERT INTO tenant_limits (tenant_id) SELECT id FROM tenant;

CREATE FUNCTION tenant_has_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant_limits (tenant_id) VALUES (NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER has_limits AFTER INSERT ON tenant FOR EACH ROW EXECUTE FUNCTION tenant_has_limits();
"""

RULES = """
-- Money is only ever in the tenant's currency, and a limit only ever on what is the tenant's.
CREATE FUNCTION limits_must_fit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  flaw text;
BEGIN
  IF TG_TABLE_NAME = 'plan' THEN
    SELECT 'its price book is in ' || b.currency INTO flaw FROM price_book b
    WHERE b.id = NEW.price_book_id AND b.currency <> NEW.currency;
  ELSIF TG_TABLE_NAME = 'plan_limit' THEN
    SELECT 'it has an amount of money and no currency' INTO flaw FROM plan p
    WHERE p.id = NEW.plan_id AND p.currency IS NULL AND NEW.what = 'picos';
  ELSIF TG_TABLE_NAME = 'plan_assignment' THEN
    SELECT 'its currency is ' || p.currency || ', the tenant''s ' || t.currency INTO flaw FROM plan p, tenant t
    WHERE p.id = NEW.plan_id AND t.id = NEW.tenant_id AND p.currency <> t.currency;
  ELSIF NOT EXISTS (
      SELECT FROM tenant WHERE NEW.scope_kind = 'tenant' AND NEW.scope_id = NEW.tenant_id AND id = NEW.tenant_id
      UNION ALL SELECT FROM project WHERE NEW.scope_kind = 'project' AND id = NEW.scope_id AND tenant_id = NEW.tenant_id
      UNION ALL SELECT FROM api_key WHERE NEW.scope_kind = 'key' AND id = NEW.scope_id AND tenant_id = NEW.tenant_id) THEN
    flaw := 'its scope is not the tenant''s';
  END IF;
  IF flaw IS NOT NULL THEN
    RAISE EXCEPTION 'this % can''t be: %', TG_TABLE_NAME, flaw USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fits BEFORE INSERT OR UPDATE ON plan FOR EACH ROW EXECUTE FUNCTION limits_must_fit();
CREATE TRIGGER fits BEFORE INSERT ON plan_limit FOR EACH ROW EXECUTE FUNCTION limits_must_fit();
CREATE TRIGGER fits BEFORE INSERT ON plan_assignment FOR EACH ROW EXECUTE FUNCTION limits_must_fit();
CREATE TRIGGER fits BEFORE INSERT ON limit_override FOR EACH ROW EXECUTE FUNCTION limits_must_fit();

-- What has begun stands: only a scheduled assignment can be withdrawn.
CREATE FUNCTION assignment_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.effective_from <= clock_timestamp() THEN
    RAISE EXCEPTION 'history stands: assignment % has begun', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER stands BEFORE DELETE ON plan_assignment FOR EACH ROW EXECUTE FUNCTION assignment_stands();
CREATE TRIGGER ended BEFORE UPDATE ON plan_assignment FOR EACH ROW WHEN (OLD.effective_to <= clock_timestamp())
  EXECUTE FUNCTION forbid_change();
CREATE TRIGGER revoked BEFORE UPDATE ON limit_override FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL)
  EXECUTE FUNCTION forbid_change();
"""

APP = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT, UPDATE ON tenant_limits TO steelyard_app;
    GRANT SELECT, INSERT ON plan TO steelyard_app;
    GRANT UPDATE (name, description, archived_at) ON plan TO steelyard_app;
    GRANT SELECT, INSERT, DELETE ON plan_limit TO steelyard_app;
    GRANT SELECT, INSERT ON limit_override TO steelyard_app;
    GRANT SELECT, INSERT, DELETE ON plan_assignment TO steelyard_app;
    GRANT UPDATE (effective_to) ON plan_assignment TO steelyard_app;
    GRANT UPDATE (revoked_at) ON limit_override TO steelyard_app;
  END IF;
END $$;
"""

# Rows of the new kinds can't stay: nothing that posted to them would know them again.
DOWN = """
DROP TRIGGER tell ON wallet;
DROP TRIGGER resolve ON project;
DROP TRIGGER resolve ON api_key;
DROP FUNCTION wallet_opened, project_limits, key_limits, quota_resolve_due, quota_resolve, quota_resolve_scope,
  quota_resolve_all, quota_change_limits;
DROP TYPE quota_change;
DROP FUNCTION quota_next_change, quota_wanted, quota_windows, quota_limits_at, quota_ahead, quota_periods,
  quota_period, quota_first_moment;
DROP TYPE quota_limit;
DROP TRIGGER has_limits ON tenant;
DROP TABLE tenant_limits, limit_override, plan_assignment, plan_limit, plan;
DROP FUNCTION tenant_has_limits, limits_must_fit, assignment_stands;
DROP INDEX allowance_limits, allowance_periods;
ALTER TABLE lease DISABLE TRIGGER stands;
DELETE FROM lease WHERE allowance_id IN (SELECT id FROM allowance WHERE window_kind <> 'balance');
ALTER TABLE lease ENABLE TRIGGER stands;
DELETE FROM allowance WHERE window_kind <> 'balance';
ALTER TABLE allowance
  DROP CONSTRAINT allowance_counts,
  DROP CONSTRAINT allowance_is_one,
  DROP COLUMN model_id, DROP COLUMN burst, DROP COLUMN level_micros, DROP COLUMN level_at,
  DROP COLUMN period_start, DROP COLUMN period_end, DROP COLUMN limit_source, DROP COLUMN ended_at,
  ADD CONSTRAINT allowance_what_check CHECK (what IN ('picos', 'tokens', 'requests', 'concurrent')),
  ADD CONSTRAINT allowance_window_kind_check CHECK (window_kind = 'balance'),
  ADD UNIQUE (scope_kind, scope_id, what, window_kind);
DROP FUNCTION limit_counts;
"""


def upgrade() -> None:
    for script in (ALLOWANCES, PLANS, RULES):
        run(script)
    for name in ("periods", "limits", "resolve"):
        run((SCRIPTS / f"0013_{name}.sql").read_text())
    run(APP)


def downgrade() -> None:
    run(DOWN)
