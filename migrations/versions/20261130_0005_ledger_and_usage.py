"""Ledger and usage: wallets, double entry, usage events and their roll-ups, refusals, what was set aside."""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0005"
down_revision = "20261130_0004"
branch_labels = None
depends_on = None

LEDGER = """
-- A tenant's prepaid balance. Its limit, spent and held amounts live in its allowance.
CREATE TABLE wallet (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL UNIQUE REFERENCES tenant,
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  credit_limit picos NOT NULL DEFAULT 0 CHECK (credit_limit >= 0),
  allowance_id text COLLATE "C" NOT NULL UNIQUE REFERENCES allowance,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE ledger_account (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  kind text NOT NULL CHECK (kind IN ('wallet', 'promo', 'receivable', 'accrued', 'revenue', 'breakage', 'tax',
    'cash', 'rounding')),
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  UNIQUE (tenant_id, kind, currency)
);

-- entry_count closes a transaction for ever: no later entry can join it.
CREATE TABLE ledger_transaction (
  id text COLLATE "C" PRIMARY KEY,
  kind text NOT NULL,
  ref_type text NOT NULL,
  ref_id text COLLATE "C" NOT NULL,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  at timestamptz NOT NULL,
  entry_count smallint NOT NULL CHECK (entry_count >= 2),
  UNIQUE (kind, ref_type, ref_id)
);
CREATE INDEX ledger_transaction_by_tenant ON ledger_transaction (tenant_id, at, id);

CREATE TABLE ledger_entry (
  transaction_id text COLLATE "C" NOT NULL REFERENCES ledger_transaction,
  account_id bigint NOT NULL REFERENCES ledger_account,
  amount picos NOT NULL CHECK (amount <> 0),
  PRIMARY KEY (transaction_id, account_id)
);
CREATE INDEX ledger_entry_by_account ON ledger_entry (account_id, transaction_id);

-- At commit: a transaction has all its entries, all of its tenant, and they sum to zero in each currency.
CREATE FUNCTION ledger_must_balance() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  checked text;
  present bigint;
  flaw text;
BEGIN
  IF TG_TABLE_NAME = 'ledger_entry' THEN checked := NEW.transaction_id; ELSE checked := NEW.id; END IF;
  SELECT count(*) INTO present FROM ledger_entry WHERE transaction_id = checked;
  SELECT 'has ' || present || ' entries, not ' || t.entry_count INTO flaw
    FROM ledger_transaction t WHERE t.id = checked AND t.entry_count <> present;
  IF flaw IS NULL THEN
    SELECT 'is off by ' || sum(e.amount) || ' picos of ' || a.currency INTO flaw
      FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id
      WHERE e.transaction_id = checked GROUP BY a.currency HAVING sum(e.amount) <> 0 LIMIT 1;
  END IF;
  IF flaw IS NULL THEN
    SELECT 'has an entry on an account of another tenant' INTO flaw
      FROM ledger_transaction t JOIN ledger_entry e ON e.transaction_id = t.id
        JOIN ledger_account a ON a.id = e.account_id
      WHERE t.id = checked AND a.tenant_id <> t.tenant_id LIMIT 1;
  END IF;
  IF flaw IS NOT NULL THEN
    RAISE EXCEPTION 'ledger transaction % %', checked, flaw USING ERRCODE = 'check_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER balances AFTER INSERT ON ledger_transaction DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION ledger_must_balance();
CREATE CONSTRAINT TRIGGER balances AFTER INSERT ON ledger_entry DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION ledger_must_balance();

CREATE TABLE wallet_grant (
  id text COLLATE "C" PRIMARY KEY,
  wallet_id text COLLATE "C" NOT NULL REFERENCES wallet,
  kind text NOT NULL CHECK (kind IN ('purchased', 'promo')),
  amount picos NOT NULL CHECK (amount > 0),
  reason text NOT NULL,
  reference text NOT NULL CHECK (length(reference) BETWEEN 1 AND 255),
  transaction_id text COLLATE "C" NOT NULL UNIQUE REFERENCES ledger_transaction,
  created_by text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL,
  UNIQUE (wallet_id, reference)
);
"""

USAGE = """
-- The one settlement of one admitted request. rates: picos per token of each class.
-- payload_hash: SHA-256 of the admitted record, then of the settled one, as the journal held them.
CREATE TABLE usage_event (
  request_id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  project_id text COLLATE "C" NOT NULL,
  key_id text COLLATE "C" NOT NULL,
  model_id text COLLATE "C" NOT NULL,
  model_name text NOT NULL,
  deployment_id text COLLATE "C" NOT NULL,
  backend_id text COLLATE "C",
  incarnation_id text COLLATE "C" NOT NULL,
  endpoint text NOT NULL,
  streamed boolean NOT NULL,
  admitted_at timestamptz NOT NULL,
  settled_at timestamptz NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('completed', 'client_cancelled', 'engine_failed',
    'refused_by_engine', 'timed_out', 'lost')),
  usage_source text NOT NULL CHECK (usage_source IN ('engine', 'engine_partial', 'tokenizer', 'unknown')),
  input bigint NOT NULL CHECK (input >= 0),
  input_cached bigint NOT NULL CHECK (input_cached >= 0),
  input_cache_write bigint NOT NULL CHECK (input_cache_write >= 0),
  output bigint NOT NULL CHECK (output >= 0),
  reasoning bigint NOT NULL CHECK (reasoning BETWEEN 0 AND output),
  billed_input bigint NOT NULL CHECK (billed_input >= 0),
  billed_input_cached bigint NOT NULL CHECK (billed_input_cached >= 0),
  billed_input_cache_write bigint NOT NULL CHECK (billed_input_cache_write >= 0),
  billed_output bigint NOT NULL CHECK (billed_output >= 0),
  unknown_bound jsonb CHECK ((unknown_bound IS NULL) = (usage_source <> 'unknown')),
  cost picos NOT NULL CHECK (cost >= 0),
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  price_version_id text COLLATE "C" NOT NULL REFERENCES price_version,
  rates jsonb NOT NULL,
  hold picos NOT NULL CHECK (hold >= 0),
  unleased picos NOT NULL CHECK (unleased >= 0),
  status smallint NOT NULL,
  error_code text,
  finish_reason text,
  ttft_ms bigint CHECK (ttft_ms >= 0),
  duration_ms bigint NOT NULL CHECK (duration_ms >= 0),
  bytes_relayed bigint NOT NULL CHECK (bytes_relayed >= 0),
  flags text[] NOT NULL,
  attempts jsonb NOT NULL,
  holds jsonb NOT NULL,
  payload_hash bytea NOT NULL CHECK (length(payload_hash) = 64),
  transaction_id text COLLATE "C" REFERENCES ledger_transaction DEFERRABLE INITIALLY DEFERRED,
  posted_at timestamptz NOT NULL,
  CHECK ((cost > 0) = (transaction_id IS NOT NULL)),
  CHECK (cost = billed_input * (rates ->> 'input')::numeric
    + billed_input_cached * (rates ->> 'input_cached')::numeric
    + billed_input_cache_write * (rates ->> 'input_cache_write')::numeric
    + billed_output * (rates ->> 'output')::numeric)
);
CREATE INDEX usage_event_by_tenant ON usage_event (tenant_id, request_id);
CREATE INDEX usage_event_by_time ON usage_event (tenant_id, admitted_at);
CREATE INDEX usage_event_by_moment ON usage_event USING brin (admitted_at);
CREATE INDEX usage_event_by_transaction ON usage_event (transaction_id) WHERE transaction_id IS NOT NULL;

-- Sums of usage events by 15 minutes of their admission, kept in the events' own transaction.
CREATE TABLE usage_rollup (
  bucket timestamptz NOT NULL,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  key_id text COLLATE "C" NOT NULL,
  model_id text COLLATE "C" NOT NULL,
  price_version_id text COLLATE "C" NOT NULL,
  currency text NOT NULL,
  usage_source text NOT NULL,
  requests bigint NOT NULL,
  input bigint NOT NULL,
  input_cached bigint NOT NULL,
  input_cache_write bigint NOT NULL,
  output bigint NOT NULL,
  reasoning bigint NOT NULL,
  billed_input bigint NOT NULL,
  billed_input_cached bigint NOT NULL,
  billed_input_cache_write bigint NOT NULL,
  billed_output bigint NOT NULL,
  cost picos NOT NULL,
  PRIMARY KEY (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source)
);
CREATE INDEX usage_rollup_by_tenant ON usage_rollup (tenant_id, bucket);

-- A request of a known key that was not admitted, and why.
CREATE TABLE refusal (
  request_id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  key_id text COLLATE "C" NOT NULL,
  incarnation_id text COLLATE "C" NOT NULL,
  at timestamptz NOT NULL,
  model_name text,
  endpoint text NOT NULL,
  reason text NOT NULL,
  message text NOT NULL,
  status smallint NOT NULL,
  limit_value text,
  observed_value text,
  retry_after_ms bigint
);
CREATE INDEX refusal_by_tenant ON refusal (tenant_id, request_id);
"""

SETTLER = """
-- A second settlement of one request that says something else. Never charged; someone has to look.
CREATE TABLE usage_conflict (
  request_id text COLLATE "C" NOT NULL,
  payload_hash bytea NOT NULL,
  incarnation_id text COLLATE "C" NOT NULL,
  posted_hash bytea NOT NULL,
  admitted bytea,
  settled bytea NOT NULL,
  seen_at timestamptz NOT NULL,
  PRIMARY KEY (request_id, payload_hash)
);

-- A record that can't be posted as it is. Its holds stay counted until it is resolved.
CREATE TABLE parked_record (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  incarnation_id text COLLATE "C" NOT NULL,
  file_offset bigint NOT NULL,
  request_id text COLLATE "C",
  reason text NOT NULL,
  admitted bytea,
  record bytea NOT NULL,
  holds jsonb NOT NULL,
  parked_at timestamptz NOT NULL,
  resolved_at timestamptz,
  UNIQUE (incarnation_id, file_offset)
);
CREATE INDEX parked_record_open ON parked_record (incarnation_id) WHERE resolved_at IS NULL;
CREATE INDEX parked_record_by_request ON parked_record (request_id);

-- How far a journal is posted, and from where a restarted settler has to read it again.
CREATE TABLE journal_position (
  incarnation_id text COLLATE "C" PRIMARY KEY,
  posted_offset bigint NOT NULL,
  resume_offset bigint NOT NULL CHECK (resume_offset BETWEEN 0 AND posted_offset),
  posted_at timestamptz NOT NULL
);
"""

_HISTORY = (
    "ledger_account",
    "ledger_transaction",
    "ledger_entry",
    "wallet_grant",
    "usage_event",
    "refusal",
    "usage_conflict",
)

DOWN = """
DROP TABLE journal_position, parked_record, usage_conflict, refusal, usage_rollup, usage_event,
  wallet_grant, ledger_entry, ledger_transaction, ledger_account, wallet;
DROP FUNCTION ledger_must_balance;
"""


def _standing(table: str) -> str:
    return f"""
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION forbid_change();
CREATE TRIGGER stays BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
"""


def upgrade() -> None:
    for script in (LEDGER, USAGE, SETTLER, *map(_standing, _HISTORY)):
        run(script)


def downgrade() -> None:
    run(DOWN)
