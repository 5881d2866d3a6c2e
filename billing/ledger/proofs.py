"""Proofs that grants, corrections, events, ledger and allowances tell the same balances.

The whole history is looked at once a day; in between, only what was posted after the checkpoint of each
wallet. A checkpoint lies two minutes back, so that hardly any transaction that is still open can end up
before it; where one does, or where anything differs, the wallet is proven from the beginning before it is
called wrong. Checkpoints are projections: without them everything is proven in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ARRAY, RowMapping, Text, bindparam, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import WalletId
from billing.ledger.model import Drift
from billing.ledger.service import trial_balance
from billing.ledger.tables import ledger_checkpoint

IN_FULL_EVERY = timedelta(days=1)
BACK = timedelta(minutes=2)
"""How far a checkpoint lies back: longer than a transaction usually lasts. A later one costs a full proof."""
_TRIAL = "trial"
_LOCK = 0x5359_4C50

_DRIFTS = text("""
SELECT w.id, w.currency, told.*
FROM wallet w JOIN allowance a ON a.id = w.allowance_id
CROSS JOIN LATERAL (SELECT
  coalesce((SELECT sum(m.amount) FROM wallet_move m WHERE m.wallet_id = w.id), 0)
    - coalesce((SELECT sum(e.cost) FROM usage_event e
                WHERE e.tenant_id = w.tenant_id AND e.currency = w.currency), 0) AS by_facts,
  coalesce((SELECT sum(n.amount) FROM ledger_entry n JOIN ledger_account c ON c.id = n.account_id
            WHERE c.tenant_id = w.tenant_id AND c.kind = 'wallet' AND c.currency = w.currency), 0)
    AS by_ledger,
  a.limit_amount - w.credit_limit - a.spent AS by_allowance) told
WHERE (told.by_facts <> told.by_ledger OR told.by_ledger <> told.by_allowance)
  AND (CAST(:only AS text[]) IS NULL OR w.id = ANY (:only))
ORDER BY w.id
""").bindparams(bindparam("only", type_=ARRAY(Text)))

# What ledger and facts say of a wallet's transactions in (its checkpoint, :until].
_SINCE = """
SELECT w.id, w.allowance_id, w.credit_limit, coalesce(c.balance, 0) AS before, told.*
FROM wallet w LEFT JOIN ledger_checkpoint c ON c.scope = w.id
CROSS JOIN LATERAL (
  SELECT count(*) AS transactions, coalesce(sum(n.amount), 0) AS by_ledger,
    coalesce(sum(CASE t.kind
      WHEN 'usage' THEN (SELECT -sum(e.cost) FROM usage_event e WHERE e.transaction_id = t.id)
      ELSE (SELECT m.amount FROM wallet_move m WHERE m.transaction_id = t.id) END), 0) AS by_facts
  FROM ledger_transaction t JOIN ledger_entry n ON n.transaction_id = t.id
    JOIN ledger_account k ON k.id = n.account_id AND k.kind = 'wallet' AND k.currency = w.currency
  WHERE t.tenant_id = w.tenant_id AND t.at > coalesce(c.through, '-infinity') AND t.at <= :until) told
"""
_SUSPECTS = text(f"""
SELECT s.id FROM ({_SINCE}) s JOIN allowance a ON a.id = s.allowance_id
WHERE s.by_facts <> s.by_ledger OR s.before + s.by_ledger <> a.limit_amount - s.credit_limit - a.spent
ORDER BY s.id
""")  # noqa: S608
_ADVANCE = text(f"""
INSERT INTO ledger_checkpoint (scope, through, balance, proven_in_full_at)
SELECT s.id, :until, s.before + s.by_ledger, :now FROM ({_SINCE}) s
WHERE s.transactions > 0 AND s.by_facts = s.by_ledger AND s.id <> ALL (:except) ORDER BY s.id
ON CONFLICT (scope) DO UPDATE SET through = EXCLUDED.through, balance = EXCLUDED.balance
""").bindparams(bindparam("except", type_=ARRAY(Text)))  # noqa: S608
_UNBALANCED_SINCE = text("""
SELECT a.currency, sum(e.amount) AS total
FROM ledger_transaction t JOIN ledger_entry e ON e.transaction_id = t.id
  JOIN ledger_account a ON a.id = e.account_id
WHERE t.at > :since GROUP BY a.currency HAVING sum(e.amount) <> 0
""")


class Proof(msgspec.Struct, frozen=True):
    """What was found; both empty if all is well.

    unbalanced: picos by currency.   in_full: the whole history was looked at.
    """

    unbalanced: dict[str, int]
    drifts: list[Drift]
    in_full: bool


async def prove(connection: AsyncConnection, *, now: datetime) -> Proof:
    """Prove the books: what is new since the checkpoints, once a day everything. Moves the checkpoints on.

    One at a time: a second one waits. Costs what was posted since the proof before and two minutes more,
    and a look at each wallet.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    query = select(ledger_checkpoint).where(ledger_checkpoint.c.scope == _TRIAL)
    trial = (await connection.execute(query)).mappings().one_or_none()
    if trial is None or trial["proven_in_full_at"] + IN_FULL_EVERY <= now:
        return await _prove_in_full(connection, now=now)
    return await _prove_what_is_new(connection, trial, now=now)


async def drifts(connection: AsyncConnection, *, only: Sequence[WalletId] | None = None) -> list[Drift]:
    """Wallets whose balance differs when rebuilt from its whole history: none, if all is well."""
    rows = await connection.execute(_DRIFTS, {"only": None if only is None else list(only)})
    return [
        Drift(WalletId(wallet_id), currency, int(facts), int(ledger), int(allowance))
        for wallet_id, currency, facts, ledger, allowance in rows
    ]


async def _prove_in_full(connection: AsyncConnection, *, now: datetime) -> Proof:
    unbalanced = {currency: picos for currency, picos in (await trial_balance(connection)).items() if picos}
    drifting = await drifts(connection)
    await connection.execute(delete(ledger_checkpoint))
    await _advance(connection, drifting, now=now)
    if not unbalanced:
        values = {"scope": _TRIAL, "through": now - BACK, "balance": 0, "proven_in_full_at": now}
        await connection.execute(insert(ledger_checkpoint).values(values))
    return Proof(unbalanced, drifting, in_full=True)


async def _prove_what_is_new(connection: AsyncConnection, trial: RowMapping, *, now: datetime) -> Proof:
    rows = await connection.execute(_UNBALANCED_SINCE, {"since": trial["through"]})
    unbalanced = {currency: int(total) for currency, total in rows}
    everything = now + IN_FULL_EVERY  # a clock may run a little ahead of ours
    found = await connection.execute(_SUSPECTS, {"until": everything})
    suspects = [WalletId(wallet_id) for wallet_id in found.scalars()]
    drifting = await drifts(connection, only=suspects) if suspects else []
    await connection.execute(delete(ledger_checkpoint).where(ledger_checkpoint.c.scope.in_(suspects)))
    await _advance(connection, drifting, now=now)
    if not unbalanced:
        known = ledger_checkpoint.c
        forward = ledger_checkpoint.update().where(known.scope == _TRIAL).values(through=now - BACK)
        await connection.execute(forward)
    return Proof(unbalanced, drifting, in_full=False)


async def _advance(connection: AsyncConnection, drifting: Sequence[Drift], *, now: datetime) -> None:
    """Remember the balances of all wallets that are well, as of a little while ago."""
    wrong = [drift.wallet_id for drift in drifting]
    await connection.execute(_ADVANCE, {"until": now - BACK, "now": now, "except": wrong})
