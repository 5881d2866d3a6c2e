"""Grants that burn in an order, start and expire; corrections of usage events; how far the books are proven.

A wallet's limit changes by moves alone: a grant that starts, what expires of one, what a correction gives back
or charges. A move says what was spent when it was made, so that burning can be replayed from nothing.
"""

from __future__ import annotations

from migrations.sql import run

revision = "20261201_0008"
down_revision = "20261201_0007"
branch_labels = None
depends_on = None

GRANTS = """
-- [starts_at, expires_at): lower priorities burn first, then what expires first, then what is older.
ALTER TABLE wallet_grant
  ADD COLUMN priority smallint NOT NULL DEFAULT 100 CHECK (priority BETWEEN 0 AND 1000),
  ADD COLUMN starts_at timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN expires_at timestamptz,
  ADD CHECK (expires_at > starts_at),
  -- Without one of its own, a reference is who asked and the Idempotency-Key, which alone may have 255.
  DROP CONSTRAINT wallet_grant_reference_check,
  ADD CONSTRAINT wallet_grant_reference_check CHECK (length(reference) BETWEEN 1 AND 500);
ALTER TABLE wallet_grant DISABLE TRIGGER stands;
UPDATE wallet_grant SET starts_at = created_at;
ALTER TABLE wallet_grant ENABLE TRIGGER stands;
CREATE INDEX wallet_grant_by_wallet ON wallet_grant (wallet_id, id);
CREATE INDEX wallet_grant_by_start ON wallet_grant (starts_at);
CREATE INDEX wallet_grant_by_expiry ON wallet_grant (expires_at) WHERE expires_at IS NOT NULL;
"""

CORRECTIONS = """
-- A correction of one usage event, as a row of its own. amount > 0 goes back to the tenant, < 0 is charged.
-- billed_…: by how much the billed tokens change; the amount is theirs at the event's rates, if any changes.
CREATE TABLE usage_correction (
  id text COLLATE "C" PRIMARY KEY,
  request_id text COLLATE "C" NOT NULL REFERENCES usage_event,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  amount picos NOT NULL CHECK (amount <> 0),
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  billed_input bigint NOT NULL DEFAULT 0,
  billed_input_cached bigint NOT NULL DEFAULT 0,
  billed_input_cache_write bigint NOT NULL DEFAULT 0,
  billed_output bigint NOT NULL DEFAULT 0,
  reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 500),
  reference text NOT NULL CHECK (length(reference) BETWEEN 1 AND 500),
  created_by text COLLATE "C" NOT NULL,
  at timestamptz NOT NULL,
  transaction_id text COLLATE "C" NOT NULL UNIQUE REFERENCES ledger_transaction,
  UNIQUE (tenant_id, reference)
);
CREATE INDEX usage_correction_by_request ON usage_correction (request_id, id);
CREATE INDEX usage_correction_by_tenant ON usage_correction (tenant_id, id);
CREATE INDEX usage_correction_by_time ON usage_correction (tenant_id, at);

-- All corrections of an event leave a net cost from zero to what the request was held for, and no class below zero.
CREATE FUNCTION usage_correction_must_fit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  event usage_event;
  given record;
  worth numeric;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(NEW.request_id, 8));
  SELECT * INTO event FROM usage_event WHERE request_id = NEW.request_id;
  SELECT coalesce(sum(amount), 0) + NEW.amount AS amount,
    coalesce(sum(billed_input), 0) + NEW.billed_input AS input,
    coalesce(sum(billed_input_cached), 0) + NEW.billed_input_cached AS input_cached,
    coalesce(sum(billed_input_cache_write), 0) + NEW.billed_input_cache_write AS input_cache_write,
    coalesce(sum(billed_output), 0) + NEW.billed_output AS output
  INTO given FROM usage_correction WHERE request_id = NEW.request_id;
  worth := -(NEW.billed_input * (event.rates ->> 'input')::numeric
    + NEW.billed_input_cached * (event.rates ->> 'input_cached')::numeric
    + NEW.billed_input_cache_write * (event.rates ->> 'input_cache_write')::numeric
    + NEW.billed_output * (event.rates ->> 'output')::numeric);
  IF event.tenant_id IS DISTINCT FROM NEW.tenant_id OR event.currency IS DISTINCT FROM NEW.currency THEN
    RAISE EXCEPTION 'correction % is not of its event''s tenant and currency', NEW.id USING ERRCODE = 'check_violation';
  ELSIF (NEW.billed_input, NEW.billed_input_cached, NEW.billed_input_cache_write, NEW.billed_output) <> (0, 0, 0, 0)
      AND worth <> NEW.amount THEN
    RAISE EXCEPTION 'correction % is not worth its tokens', NEW.id USING ERRCODE = 'check_violation';
  ELSIF given.amount > event.cost OR event.cost - given.amount > greatest(event.hold, event.cost) THEN
    RAISE EXCEPTION 'corrections of % leave a net cost of %', NEW.request_id, event.cost - given.amount
      USING ERRCODE = 'check_violation';
  ELSIF least(event.billed_input + given.input, event.billed_input_cached + given.input_cached,
      event.billed_input_cache_write + given.input_cache_write, event.billed_output + given.output) < 0 THEN
    RAISE EXCEPTION 'corrections of % leave fewer than no tokens', NEW.request_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fits BEFORE INSERT ON usage_correction FOR EACH ROW EXECUTE FUNCTION usage_correction_must_fit();
"""

MOVES = """
-- What changed a wallet's limit beside its credit, numbered 1, 2, … in its order. spent: the allowance's at that
-- moment. ended: nothing of an expired grant remains; it moves nothing.
CREATE TABLE wallet_move (
  wallet_id text COLLATE "C" NOT NULL REFERENCES wallet,
  number bigint NOT NULL CHECK (number > 0),
  kind text NOT NULL CHECK (kind IN ('started', 'expired', 'ended', 'returned', 'charged')),
  grant_id text COLLATE "C" REFERENCES wallet_grant,
  correction_id text COLLATE "C" UNIQUE REFERENCES usage_correction,
  amount picos NOT NULL,
  spent picos NOT NULL CHECK (spent >= 0),
  at timestamptz NOT NULL,
  transaction_id text COLLATE "C" UNIQUE REFERENCES ledger_transaction,
  PRIMARY KEY (wallet_id, number),
  CHECK ((grant_id IS NOT NULL) = (kind IN ('started', 'expired', 'ended'))),
  CHECK ((correction_id IS NOT NULL) = (kind IN ('returned', 'charged'))),
  CHECK ((transaction_id IS NULL) = (kind = 'ended')),
  CHECK (sign(amount) = CASE kind WHEN 'ended' THEN 0 WHEN 'expired' THEN -1 WHEN 'charged' THEN -1 ELSE 1 END)
);
CREATE UNIQUE INDEX wallet_move_start ON wallet_move (grant_id) WHERE kind = 'started';
CREATE UNIQUE INDEX wallet_move_end ON wallet_move (grant_id) WHERE kind = 'ended';
CREATE INDEX wallet_move_by_grant ON wallet_move (grant_id) WHERE grant_id IS NOT NULL;

INSERT INTO wallet_move (wallet_id, number, kind, grant_id, amount, spent, at, transaction_id)
SELECT wallet_id, row_number() OVER (PARTITION BY wallet_id ORDER BY created_at, id), 'started', id, amount, 0,
  created_at, transaction_id
FROM wallet_grant;

-- A move follows the last one, says what is spent, is what its grant or correction and its ledger entry say, and
-- takes only what neither is spent nor lent. Its transaction holds the allowance's lock.
CREATE FUNCTION wallet_move_must_fit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  purse wallet;
  flaw text;
BEGIN
  SELECT * INTO purse FROM wallet WHERE id = NEW.wallet_id;
  IF NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM wallet_move WHERE wallet_id = NEW.wallet_id) THEN
    flaw := 'does not follow the last one';
  ELSIF NEW.spent <> (SELECT spent FROM allowance WHERE id = purse.allowance_id) THEN
    flaw := 'does not say what is spent';
  ELSIF NEW.amount < 0 AND -NEW.amount > quota_available(purse.allowance_id) THEN
    flaw := 'takes what is spent or lent';
  ELSIF NEW.grant_id IS NOT NULL AND NOT EXISTS (SELECT FROM wallet_grant g
      WHERE g.id = NEW.grant_id AND g.wallet_id = NEW.wallet_id AND CASE NEW.kind
        WHEN 'started' THEN g.amount = NEW.amount
        WHEN 'expired' THEN g.expires_at <= NEW.at AND g.amount + NEW.amount + (SELECT coalesce(sum(m.amount), 0)
          FROM wallet_move m WHERE m.grant_id = g.id AND m.kind = 'expired') >= 0
        ELSE g.expires_at <= NEW.at END) THEN
    flaw := 'is not what its grant allows';
  ELSIF NEW.correction_id IS NOT NULL AND NOT EXISTS (SELECT FROM usage_correction c
      WHERE c.id = NEW.correction_id AND c.tenant_id = purse.tenant_id AND c.amount = NEW.amount
        AND c.transaction_id = NEW.transaction_id) THEN
    flaw := 'is not what its correction says';
  ELSIF NEW.transaction_id IS NOT NULL AND NOT EXISTS (SELECT FROM ledger_entry e
      JOIN ledger_account a ON a.id = e.account_id
      WHERE e.transaction_id = NEW.transaction_id AND a.kind = 'wallet' AND a.tenant_id = purse.tenant_id
        AND a.currency = purse.currency AND e.amount = NEW.amount) THEN
    flaw := 'is not what the ledger says';
  END IF;
  IF flaw IS NOT NULL THEN
    RAISE EXCEPTION 'move % of wallet % %', NEW.number, NEW.wallet_id, flaw USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fits BEFORE INSERT ON wallet_move FOR EACH ROW EXECUTE FUNCTION wallet_move_must_fit();
"""

LEDGER = """
-- Which accounts a transaction of a known kind may touch, and with which sign; a wallet's tenant moves money in the
-- wallet's currency only.
CREATE FUNCTION ledger_entry_must_fit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  known record;
  legs text[];
BEGIN
  SELECT t.kind, a.kind || CASE WHEN NEW.amount < 0 THEN '-' ELSE '+' END AS leg, a.currency, w.currency AS purse
  INTO known
  FROM ledger_transaction t CROSS JOIN ledger_account a LEFT JOIN wallet w ON w.tenant_id = t.tenant_id
  WHERE t.id = NEW.transaction_id AND a.id = NEW.account_id;
  legs := CASE known.kind
    WHEN 'usage' THEN '{wallet-,revenue+}'
    WHEN 'grant' THEN '{wallet+,accrued+,cash-,promo-}'
    WHEN 'start' THEN '{accrued-,wallet+}'
    WHEN 'expiry' THEN '{wallet-,breakage+,promo+}'
    WHEN 'correction' THEN '{wallet+,revenue-,wallet-,revenue+}'
  END::text[];
  IF legs IS NOT NULL AND known.leg <> ALL (legs) THEN
    RAISE EXCEPTION 'a transaction of kind % has no leg %', known.kind, known.leg USING ERRCODE = 'check_violation';
  ELSIF legs IS NOT NULL AND known.currency <> known.purse THEN
    RAISE EXCEPTION 'the wallet of transaction % is kept in %, not %', NEW.transaction_id, known.purse, known.currency
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fits BEFORE INSERT ON ledger_entry FOR EACH ROW EXECUTE FUNCTION ledger_entry_must_fit();
CREATE INDEX ledger_transaction_by_moment ON ledger_transaction USING brin (at);

-- Up to where the books are proven, and the balance there. scope: a wallet's id, or 'trial' for the sum of all
-- entries. A projection: without its rows everything is proven from the beginning.
CREATE TABLE ledger_checkpoint (
  scope text COLLATE "C" PRIMARY KEY,
  through timestamptz NOT NULL,
  balance picos NOT NULL,
  proven_in_full_at timestamptz NOT NULL
);
"""

APP = """
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'steelyard_app') THEN
    GRANT SELECT, INSERT ON usage_correction, wallet_move TO steelyard_app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ledger_checkpoint TO steelyard_app;
  END IF;
END $$;
"""

DOWN = """
DROP TABLE ledger_checkpoint, wallet_move, usage_correction;
DROP INDEX ledger_transaction_by_moment, wallet_grant_by_wallet;
DROP TRIGGER fits ON ledger_entry;
DROP FUNCTION ledger_entry_must_fit, wallet_move_must_fit, usage_correction_must_fit;
ALTER TABLE wallet_grant DROP COLUMN priority, DROP COLUMN starts_at, DROP COLUMN expires_at,
  DROP CONSTRAINT wallet_grant_reference_check,
  ADD CONSTRAINT wallet_grant_reference_check CHECK (length(reference) BETWEEN 1 AND 255);
"""


def _standing(table: str) -> str:
    return f"""
CREATE TRIGGER stands BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION forbid_change();
CREATE TRIGGER stays BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
"""


def upgrade() -> None:
    for script in (GRANTS, CORRECTIONS, MOVES, LEDGER):
        run(script)
    for table in ("usage_correction", "wallet_move"):
        run(_standing(table))
    run(APP)


def downgrade() -> None:
    run(DOWN)
