"""Foundation: money's domain, the functions that guard history and tell of changes, tenants and projects."""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0001"
down_revision = None
branch_labels = None
depends_on = None

UP = """
CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE DOMAIN picos AS numeric(38, 0);

CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'history stands: % on % is not allowed', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'restrict_violation', HINT = 'Write a correcting row instead.';
END $$;

-- Row trigger: tells listeners which row of which kind changed, e.g. 'api_key:key_0193…'.
CREATE FUNCTION notify_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('steelyard_changes', TG_TABLE_NAME || ':' || coalesce(NEW.id, OLD.id));
  RETURN NULL;
END $$;

CREATE TABLE tenant (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  timezone text NOT NULL DEFAULT 'UTC',
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended', 'closed')),
  price_book_id text COLLATE "C",
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE project (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived')),
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (tenant_id, name)
);

CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON tenant FOR EACH ROW EXECUTE FUNCTION notify_change();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON project FOR EACH ROW EXECUTE FUNCTION notify_change();
"""

DOWN = """
DROP TABLE project, tenant;
DROP FUNCTION notify_change, forbid_change;
DROP DOMAIN picos;
DROP EXTENSION btree_gist;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
