"""Identity: people, sessions, access tokens, API keys, idempotency, audit log."""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0002"
down_revision = "20261130_0001"
branch_labels = None
depends_on = None

UP = """
-- A person. tenant_id NULL: staff of the operator.
CREATE TABLE member (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant,
  email text NOT NULL CHECK (email = lower(email) AND position('@' in email) > 1),
  name text NOT NULL DEFAULT '',
  role text NOT NULL CHECK (role IN ('operator', 'finance', 'developer', 'viewer')),
  password_hash text,
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (email)
);

-- A console session; digest = SHA-256 of the cookie's secret.
CREATE TABLE session (
  digest bytea PRIMARY KEY,
  member_id text COLLATE "C" NOT NULL REFERENCES member,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
);

-- A credential of a person or a script for the control API; digest = SHA-256 of the token.
CREATE TABLE access_token (
  id text COLLATE "C" PRIMARY KEY,
  member_id text COLLATE "C" NOT NULL REFERENCES member,
  name text NOT NULL,
  digest bytea NOT NULL UNIQUE,
  last_four text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);

-- A credential of a project for the data plane; digest = SHA-256 of the key.
CREATE TABLE api_key (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  project_id text COLLATE "C" NOT NULL REFERENCES project,
  name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  digest bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
  prefix text NOT NULL,
  last_four text NOT NULL,
  scopes text[] NOT NULL DEFAULT '{inference,usage:read}',
  models text[],
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text COLLATE "C",
  expires_at timestamptz,
  revoked_at timestamptz,
  rotated_from text COLLATE "C" REFERENCES api_key
);
CREATE INDEX api_key_by_project ON api_key (project_id, id);
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON api_key FOR EACH ROW EXECUTE FUNCTION notify_change();

-- The answer once given to a write that carried an Idempotency-Key.
CREATE TABLE idempotency_key (
  actor text COLLATE "C" NOT NULL,
  key text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
  request_hash bytea NOT NULL,
  status smallint NOT NULL,
  response jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (actor, key)
);

-- Append-only and hash-chained: hash = SHA-256(previous hash || canonical row).
CREATE TABLE audit_log (
  sequence bigint PRIMARY KEY,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  object_type text NOT NULL,
  object_id text NOT NULL,
  tenant_id text COLLATE "C",
  before jsonb,
  after jsonb,
  from_address text,
  previous_hash bytea NOT NULL,
  hash bytea NOT NULL
);
CREATE INDEX audit_log_by_object ON audit_log (object_type, object_id, sequence);
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON audit_log FOR EACH ROW EXECUTE FUNCTION forbid_change();
CREATE TRIGGER stays BEFORE TRUNCATE ON audit_log FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
"""

DOWN = "DROP TABLE audit_log, idempotency_key, api_key, access_token, session, member;"


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
