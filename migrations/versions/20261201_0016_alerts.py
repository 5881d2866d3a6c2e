"""Alerts on allowances, where they go, and how their delivery went.

What is used of an allowance, spent + outstanding, rises by a grant of a lease, by use that no lease covered, and in
share by another limit; by nothing else. There a trigger compares it with the level at which the next alert is due,
and marks the allowance: so a look for alerts reads the marks alone, however many allowances there are.
"""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0016"
down_revision = "20261201_0015"
branch_labels = None
depends_on = None

ENDPOINTS = """
-- Where a tenant's alerts go.   address: a URL or a mailbox.
CREATE TABLE alert_endpoint (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  kind text NOT NULL CHECK (kind IN ('webhook', 'email')),
  name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  address text NOT NULL CHECK (length(address) BETWEEN 3 AND 2000),
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled', 'removed')),
  disabled_because text,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL
);
CREATE INDEX alert_endpoint_by_tenant ON alert_endpoint (tenant_id, id);

-- What signs a webhook's messages; in a table of its own, so that nothing that shows endpoints reads it.
CREATE TABLE alert_secret (
  endpoint_id text COLLATE "C" PRIMARY KEY REFERENCES alert_endpoint,
  secret bytea NOT NULL CHECK (length(secret) BETWEEN 24 AND 64)
);

-- At which shares of its limit, and below what rest, a tenant hears of an allowance. The most specific rule counts;
-- without a scope it is the tenant's default.
CREATE TABLE alert_rule (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  scope_kind text CHECK (scope_kind IN ('tenant', 'project', 'key', 'task')),
  scope_id text COLLATE "C" CHECK (scope_id IS NULL OR scope_kind IS NOT NULL),
  what text,
  window_kind text,
  percents smallint[] NOT NULL CHECK (cardinality(percents) <= 10 AND 1 <= ALL (percents) AND 100 >= ALL (percents)),
  remaining picos CHECK (remaining > 0),
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT alert_rule_once UNIQUE NULLS NOT DISTINCT (tenant_id, scope_kind, scope_id, what, window_kind)
);
"""

ALERTS = """
-- A threshold that was reached, with the numbers of that moment. rearmed_at: the limit was raised so far that it may
-- be reached once more.
CREATE TABLE alert (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  allowance_id text COLLATE "C" NOT NULL REFERENCES allowance,
  kind text NOT NULL CHECK (kind IN ('percent', 'remaining')),
  threshold picos NOT NULL CHECK (threshold > 0),
  scope_kind text NOT NULL,
  scope_id text COLLATE "C" NOT NULL,
  scope_name text,
  model_id text COLLATE "C",
  what text NOT NULL,
  window_kind text NOT NULL,
  period_start timestamptz,
  period_end timestamptz,
  currency text,
  limit_amount picos NOT NULL,
  spent picos NOT NULL,
  outstanding picos NOT NULL,
  at timestamptz NOT NULL,
  rearmed_at timestamptz
);
CREATE UNIQUE INDEX alert_once ON alert (allowance_id, kind, threshold) WHERE rearmed_at IS NULL;
CREATE INDEX alert_by_tenant ON alert (tenant_id, id);

-- The outbox: written in the transaction of its alert. next_at: when it is tried next; one that is being tried is
-- tried again from then on, if its worker dies. No alert: a test.
CREATE TABLE alert_delivery (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  endpoint_id text COLLATE "C" NOT NULL REFERENCES alert_endpoint,
  alert_id text COLLATE "C" REFERENCES alert,
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'dead')),
  attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  next_at timestamptz NOT NULL,
  last_status smallint,
  last_error text,
  created_at timestamptz NOT NULL,
  ended_at timestamptz,
  UNIQUE (endpoint_id, alert_id),
  CHECK ((status = 'pending') = (ended_at IS NULL))
);
CREATE INDEX alert_delivery_due ON alert_delivery (endpoint_id, next_at) WHERE status = 'pending';
CREATE INDEX alert_delivery_waiting ON alert_delivery (created_at) WHERE status = 'pending';
CREATE INDEX alert_delivery_dead ON alert_delivery (tenant_id, id) WHERE status = 'dead';
CREATE INDEX alert_delivery_by_tenant ON alert_delivery (tenant_id, id);
CREATE INDEX alert_delivery_by_alert ON alert_delivery (alert_id);
"""

MARKS = """
-- The level of spent + outstanding from which on there is something to say; none: nothing can be. An allowance
-- without a row was never looked at.
CREATE TABLE alert_watch (allowance_id text COLLATE "C" PRIMARY KEY REFERENCES allowance, level picos);

-- Allowances to look at. Written under the lock of the allowance, like all that moves it, and by triggers alone.
CREATE TABLE alert_due (allowance_id text COLLATE "C" PRIMARY KEY);

-- Tenants whose rules changed: all their allowances are looked at, in the order of their ids, after the given one.
CREATE TABLE alert_sweep (
  tenant_id text COLLATE "C" PRIMARY KEY REFERENCES tenant,
  version bigint NOT NULL DEFAULT 1,
  after text COLLATE "C" NOT NULL DEFAULT ''
);

-- Rates, whose leases have an epoch, are not watched.
CREATE FUNCTION alert_note_grant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO alert_due (allowance_id)
  SELECT a.id FROM allowance a LEFT JOIN alert_watch w ON w.allowance_id = a.id
  WHERE a.id = NEW.allowance_id AND (w.allowance_id IS NULL OR w.level <= a.spent + (
    SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) FROM lease l
    WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0))
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER alerts_first AFTER INSERT ON lease FOR EACH ROW WHEN (NEW.granted > 0 AND NEW.epoch = 0)
  EXECUTE FUNCTION alert_note_grant();
CREATE TRIGGER alerts AFTER UPDATE OF granted ON lease FOR EACH ROW
  WHEN (NEW.granted > OLD.granted AND NEW.epoch = 0)
  EXECUTE FUNCTION alert_note_grant();

CREATE FUNCTION alert_note_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO alert_due (allowance_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER alerts AFTER UPDATE OF limit_amount, unleased, ended_at ON allowance FOR EACH ROW
  WHEN (NEW.limit_amount <> OLD.limit_amount OR NEW.unleased > OLD.unleased
    OR NEW.ended_at IS DISTINCT FROM OLD.ended_at)
  EXECUTE FUNCTION alert_note_limit();
"""

APP = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT, UPDATE ON alert_endpoint, alert_delivery, alert_watch TO steelyard_app;
    GRANT SELECT, INSERT, DELETE ON alert_secret, alert_due TO steelyard_app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON alert_rule, alert_sweep TO steelyard_app;
    GRANT SELECT, INSERT, UPDATE (rearmed_at) ON alert TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DROP TRIGGER alerts ON allowance;
DROP TRIGGER alerts ON lease;
DROP TRIGGER alerts_first ON lease;
DROP FUNCTION alert_note_limit, alert_note_grant;
DROP TABLE alert_sweep, alert_due, alert_watch, alert_delivery, alert, alert_rule, alert_secret, alert_endpoint;
"""


def upgrade() -> None:
    for script in (ENDPOINTS, ALERTS, MARKS, APP):
        run(script)


def downgrade() -> None:
    run(DOWN)
