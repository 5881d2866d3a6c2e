"""Catalogue and prices: models, deployments, backends; price books with dated versions."""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0003"
down_revision = "20261130_0002"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE model (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$'),
  display_name text NOT NULL DEFAULT '',
  context_limit integer NOT NULL CHECK (context_limit > 0),
  max_output_tokens integer NOT NULL CHECK (max_output_tokens > 0),
  default_output_tokens integer NOT NULL CHECK (default_output_tokens > 0),
  status text NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'published', 'retired')),
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (default_output_tokens <= max_output_tokens AND max_output_tokens <= context_limit)
);

CREATE TABLE deployment (
  id text COLLATE "C" PRIMARY KEY,
  model_id text COLLATE "C" NOT NULL UNIQUE REFERENCES model,
  policy text NOT NULL DEFAULT 'least_predicted_wait',
  created_at timestamptz NOT NULL DEFAULT now()
);

-- One engine process with an address. Removed ones stay: usage refers to them.
CREATE TABLE backend (
  id text COLLATE "C" PRIMARY KEY,
  deployment_id text COLLATE "C" NOT NULL REFERENCES deployment,
  base_url text NOT NULL CHECK (base_url ~ '^https?://'),
  engine text NOT NULL CHECK (engine IN ('vllm', 'llama-server', 'sglang', 'openai', 'simulator')),
  served_model text NOT NULL,
  max_concurrent integer NOT NULL DEFAULT 64 CHECK (max_concurrent > 0),
  weight integer NOT NULL DEFAULT 100 CHECK (weight BETWEEN 0 AND 1000),
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'removed')),
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX backend_address ON backend (deployment_id, base_url) WHERE status <> 'removed';

CREATE TABLE price_book (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL UNIQUE,
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  is_default boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX price_book_default ON price_book (currency) WHERE is_default;
ALTER TABLE tenant ADD FOREIGN KEY (price_book_id) REFERENCES price_book;

-- [effective_from, effective_to). Two published versions of one book never overlap.
CREATE TABLE price_version (
  id text COLLATE "C" PRIMARY KEY,
  price_book_id text COLLATE "C" NOT NULL REFERENCES price_book,
  status text NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'published')),
  effective_from timestamptz,
  effective_to timestamptz CHECK (effective_to > effective_from),
  note text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz,
  CHECK (status = 'draft' OR (effective_from IS NOT NULL AND published_at IS NOT NULL)),
  EXCLUDE USING gist (price_book_id WITH =, tstzrange(effective_from, effective_to) WITH &&)
    WHERE (status = 'published')
);

CREATE TABLE price (
  price_version_id text COLLATE "C" NOT NULL REFERENCES price_version,
  model_id text COLLATE "C" NOT NULL REFERENCES model,
  meter text NOT NULL CHECK (meter IN ('input', 'input_cached', 'input_cache_write', 'output')),
  service_tier text NOT NULL DEFAULT 'standard',
  context_band integer NOT NULL DEFAULT 0 CHECK (context_band >= 0),
  micros_per_mtok bigint NOT NULL CHECK (micros_per_mtok BETWEEN 0 AND 1000000000000),
  PRIMARY KEY (price_version_id, model_id, meter, service_tier, context_band)
);

-- A published version is frozen, but for the end that its successor gives it.
CREATE FUNCTION freeze_price_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status = 'published' AND (TG_OP = 'DELETE' OR (NEW.id, NEW.price_book_id, NEW.status, NEW.effective_from)
      IS DISTINCT FROM (OLD.id, OLD.price_book_id, OLD.status, OLD.effective_from)
      OR (OLD.effective_to IS NOT NULL AND NEW.effective_to IS DISTINCT FROM OLD.effective_to)) THEN
    RAISE EXCEPTION 'history stands: price version % is published', OLD.id USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON price_version
  FOR EACH ROW EXECUTE FUNCTION freeze_price_version();

CREATE FUNCTION freeze_price() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE version text := CASE TG_OP WHEN 'INSERT' THEN NEW.price_version_id ELSE OLD.price_version_id END;
BEGIN
  IF EXISTS (SELECT FROM price_version WHERE id = version AND status = 'published') THEN
    RAISE EXCEPTION 'history stands: price version % is published', version USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER stands BEFORE INSERT OR UPDATE OR DELETE ON price
  FOR EACH ROW EXECUTE FUNCTION freeze_price();

CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON model FOR EACH ROW EXECUTE FUNCTION notify_change();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON deployment FOR EACH ROW EXECUTE FUNCTION notify_change();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON backend FOR EACH ROW EXECUTE FUNCTION notify_change();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON price_book FOR EACH ROW EXECUTE FUNCTION notify_change();
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON price_version FOR EACH ROW EXECUTE FUNCTION notify_change();
"""

DOWN = """
ALTER TABLE tenant DROP CONSTRAINT tenant_price_book_id_fkey;
DROP TABLE price, price_version, price_book, backend, deployment, model;
DROP FUNCTION freeze_price, freeze_price_version;
"""


def upgrade() -> None:
    run(UP)


def downgrade() -> None:
    run(DOWN)
