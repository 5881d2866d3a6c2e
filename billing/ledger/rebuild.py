"""Balances are projections: rebuilt from events, corrections, moves and entries, compared, and rewritten.

`compare` only looks. The rewriting functions are an operator's: each locks what settlements write before
it reads, so that they may go on meanwhile, and what they add comes on top.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import InvariantViolation
from app.core.ids import WalletId
from billing.ledger.proofs import drifts
from billing.ledger.wallets import read_story

_KEY = "bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source"
_SUMS = (
    *("requests", "input", "input_cached", "input_cache_write", "output", "reasoning"),
    *("billed_input", "billed_input_cached", "billed_input_cache_write", "billed_output", "cost"),
)
_MEASURED = ", ".join(f"sum({name}) AS {name}" for name in _SUMS[1:])
_CORRECTED = ", ".join(f"sum(c.{name}) AS {name}" for name in _SUMS[6:10])
_OF_EVENT = "e.tenant_id, e.project_id, e.key_id, e.model_id, e.price_version_id, e.currency"
_ROLLUPS = f"""
SELECT date_bin('15 minutes', admitted_at, 'epoch') AS bucket, tenant_id, project_id, key_id, model_id,
  price_version_id, currency, usage_source, count(*) AS requests, {_MEASURED}
FROM usage_event GROUP BY {_KEY}
UNION ALL
SELECT date_bin('15 minutes', c.at, 'epoch') AS bucket, {_OF_EVENT}, 'correction', 0, 0, 0, 0, 0, 0,
  {_CORRECTED}, -sum(c.amount)
FROM usage_correction c JOIN usage_event e USING (request_id) GROUP BY 1, {_OF_EVENT}
"""  # noqa: S608
_PAIRS = ", ".join(
    f"coalesce(s.{name}, 0) AS stands_{name}, coalesce(r.{name}, 0) AS rebuilt_{name}" for name in _SUMS
)
_DIFFERING_ROLLUPS = text(f"""
WITH rebuilt AS ({_ROLLUPS})
SELECT concat_ws('/', {_KEY}) AS scope,
  {_PAIRS}
FROM rebuilt r FULL JOIN usage_rollup s USING ({_KEY})
WHERE ({", ".join(f"coalesce(s.{name}, 0)" for name in _SUMS)})
  IS DISTINCT FROM ({", ".join(f"coalesce(r.{name}, 0)" for name in _SUMS)})
ORDER BY 1
""")  # noqa: S608
_REWRITE_ROLLUPS = text(f"INSERT INTO usage_rollup ({_KEY}, {', '.join(_SUMS)}) {_ROLLUPS}")
_ALLOWANCES = """
SELECT a.id, a.limit_amount, a.spent,
  CASE a.window_kind WHEN 'minute' THEN a.spent ELSE coalesce(used.amount, 0) END AS used,
  coalesce(w.credit_limit + coalesce((SELECT sum(m.amount) FROM wallet_move m WHERE m.wallet_id = w.id), 0),
    CASE WHEN k.id IS NOT NULL THEN greatest(k.budget - k.spent_before, 0) END, a.limit_amount) AS given
FROM allowance a LEFT JOIN wallet w ON w.allowance_id = a.id LEFT JOIN task k ON k.allowance_id = a.id
LEFT JOIN (SELECT h ->> 'allowance_id' AS id, sum((h ->> 'used')::numeric) AS amount
  FROM usage_event, jsonb_array_elements(holds) AS h GROUP BY 1) used ON used.id = a.id
"""
_DIFFERING_ALLOWANCES = text(
    f"SELECT * FROM ({_ALLOWANCES}) r WHERE (limit_amount, spent) <> (given, used) ORDER BY id"  # noqa: S608
)
_REWRITE_ALLOWANCES = text(
    f"UPDATE allowance a SET limit_amount = r.given, spent = r.used FROM ({_ALLOWANCES}) r"  # noqa: S608
    " WHERE r.id = a.id AND (r.limit_amount, r.spent) <> (r.given, r.used)"
)
# Tenants whose limits change right now are left out: whoever looks first turns them.
_DIFFERING_LIMITS = text("""
SELECT coalesce(a.id, concat_ws('/', w.scope_id, w.model_id, w.what, w.window_kind, w.period_start)) AS id,
  coalesce(a.limit_amount, 0) AS stands, w.amount AS rebuilt
FROM (SELECT array_agg(tenant_id) AS ids FROM tenant_limits
  WHERE next_change_at IS NULL OR next_change_at > clock_timestamp()) t
CROSS JOIN LATERAL quota_wanted(t.ids, clock_timestamp(), NULL) w
LEFT JOIN allowance a ON a.scope_kind = w.scope_kind AND a.scope_id = w.scope_id AND a.what = w.what
  AND a.window_kind = w.window_kind AND a.model_id IS NOT DISTINCT FROM w.model_id
  AND a.period_start IS NOT DISTINCT FROM w.period_start AND a.ended_at IS NULL
WHERE a.limit_amount IS DISTINCT FROM w.amount
ORDER BY 1
""")
_LOCK_LIMITS = text("SELECT FROM tenant_limits ORDER BY tenant_id FOR UPDATE")
_RESOLVE_ALL = text("SELECT quota_resolve_all(array(SELECT tenant_id FROM tenant_limits), NULL)")
_LOCK_WALLETS = text("SELECT FROM wallet ORDER BY id FOR UPDATE")
_UNMOVED = text("""
SELECT w.id, coalesce(facts.amount, 0) AS facts, coalesce(moved.amount, 0) AS moved FROM wallet w
LEFT JOIN (SELECT tenant_id, sum(amount) AS amount FROM usage_correction GROUP BY 1) facts USING (tenant_id)
LEFT JOIN (SELECT wallet_id, sum(amount) AS amount FROM wallet_move
  WHERE correction_id IS NOT NULL GROUP BY 1) moved ON moved.wallet_id = w.id
ORDER BY w.id
""")


class Difference(msgspec.Struct, frozen=True):
    """A number that does not stand as it is rebuilt.

    what: `rollup`, `limit`, `spent`, `balance`, `corrections` or `grants`.   scope: whose: an id, or the key
    of a roll-up.   field: which sum of a roll-up; else what.
    """

    what: str
    scope: str
    field: str
    stands: int
    rebuilt: int


async def compare(connection: AsyncConnection) -> list[Difference]:
    """All that differs between what stands and what is rebuilt from nothing; none, if all is well.

    In a fresh transaction: it becomes one snapshot that only reads. Looks at the whole history.
    """
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    found = [each async for each in _rollups(connection)]
    for row in await connection.execute(_DIFFERING_ALLOWANCES):
        found += _differing("limit", row.id, stands=row.limit_amount, rebuilt=row.given)
        found += _differing("spent", row.id, stands=row.spent, rebuilt=row.used)
    for row in await connection.execute(_DIFFERING_LIMITS):
        found += _differing("limit", row.id, stands=row.stands, rebuilt=row.rebuilt)
    for drift in await drifts(connection):
        found += _differing(
            "balance", drift.wallet_id, stands=drift.by_ledger, rebuilt=drift.by_grants_and_events
        )
    for wallet_id, facts, moved in (await connection.execute(_UNMOVED)).all():
        found += _differing("corrections", wallet_id, stands=moved, rebuilt=facts)
        found += await _grants(connection, wallet_id)
    return found


async def rebuild_rollups(connection: AsyncConnection) -> int:
    """How many roll-ups there are, all written anew. Settlements wait until the commit, and add theirs.

    Before `rebuild_allowances`, if one transaction does both: so locks come in everyone's order.
    """
    await connection.execute(_LOCK_WALLETS)  # who moves one goes on to the roll-ups
    await connection.execute(text("LOCK TABLE usage_rollup IN EXCLUSIVE MODE"))
    await connection.execute(text("DELETE FROM usage_rollup"))
    return (await connection.execute(_REWRITE_ROLLUPS)).rowcount


async def rebuild_allowances(connection: AsyncConnection) -> None:
    """Write each allowance's limit, and what is spent of it, anew. Leases are facts and stay.

    A limit is the wallet's moves, the task's budget, or what plan and overrides say; of a rate nothing is
    spent: its bucket is the only record.
    """
    await connection.execute(_LOCK_LIMITS)
    await connection.execute(_LOCK_WALLETS)
    await connection.execute(text("SELECT FROM allowance ORDER BY id FOR UPDATE"))
    await connection.execute(_REWRITE_ALLOWANCES)
    await connection.execute(_RESOLVE_ALL)


async def _rollups(connection: AsyncConnection) -> AsyncIterator[Difference]:
    for row in (await connection.execute(_DIFFERING_ROLLUPS)).mappings():
        for name in _SUMS:
            stands, rebuilt = int(row[f"stands_{name}"]), int(row[f"rebuilt_{name}"])
            if stands != rebuilt:
                yield Difference("rollup", row["scope"], name, stands, rebuilt)


async def _grants(connection: AsyncConnection, wallet_id: WalletId) -> list[Difference]:
    """Whether a wallet's grants, burned from the beginning, leave what its allowance says."""
    story = await read_story(connection, wallet_id)
    stands = story.balance().posted
    try:
        burned = story.burned()
    except InvariantViolation:  # a story that can't be leaves nothing
        return [Difference("grants", wallet_id, "grants", stands, 0)]
    return list(_differing("grants", wallet_id, stands=stands, rebuilt=burned.remaining - burned.credit))


def _differing(what: str, scope: str, *, stands: int, rebuilt: int) -> Iterator[Difference]:
    if stands != rebuilt:
        yield Difference(what, scope, what, int(stands), int(rebuilt))
