"""The proofs of the books: for each pair one query, which finds no row when all is well.

The queries stand in `queries/`, by the name of their pair. Each reads one UTC day, by index: events by the
moment of their admission, transactions by that of their posting. Pairs that stand read what is open, and of
leases all; wallets are proven by the ledger, from its checkpoints on. `left` and `right` of a gap follow the
order of the pair's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from importlib import resources

from sqlalchemy import RowMapping, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import proofs
from billing.ledger.model import Drift
from billing.reconcile.days import bounds
from billing.reconcile.model import Gap, Pair, Proof, Unit

MOST_GAPS = 200
"""Gaps of one proof that are told; beyond that it is not a matter of single rows."""
_OF_POSTINGS = {Pair.EVENTS_LEDGER, Pair.CORRECTIONS_LEDGER, Pair.GRANTS_LEDGER, Pair.DOUBLE_ENTRY}
_TOLD = f"""
SELECT scanned.scanned, found.* FROM scanned LEFT JOIN (SELECT * FROM gap LIMIT {MOST_GAPS}) found ON true"""  # noqa: S608

_WALLETS = text("SELECT count(*) FROM wallet")


def _statement(pair: Pair) -> TextClause:
    """One statement, so one snapshot: how much was read, and beside it each gap, or one row without any."""
    named = resources.files("billing.reconcile") / "queries"
    before = (named / "posted.sql").read_text(encoding="utf-8") if pair in _OF_POSTINGS else ""
    return text(f"WITH {before}{(named / f'{pair.value}.sql').read_text(encoding='utf-8')}{_TOLD}")


_STATEMENTS: dict[Pair, TextClause] = {
    pair: _statement(pair) for pair in Pair if pair not in (Pair.LEDGER_WALLETS, Pair.ENGINE_EVENTS)
}


async def prove(connection: AsyncConnection, pair: Pair, *, day: date, now: datetime) -> Proof:
    """One look at one pair of books, of a UTC day if it has one; at most `MOST_GAPS` gaps are told."""
    if pair is Pair.LEDGER_WALLETS:
        return await _prove_wallets(connection, now=now)
    begins, ends = bounds(day)
    values = {} if pair.stands else {"begins": begins, "ends": ends}
    rows = (await connection.execute(_STATEMENTS[pair], values)).mappings().all()
    found = [_gap(pair, row) for row in rows if row["scope"] is not None]
    return Proof(pair, None if pair.stands else day, found, int(rows[0]["scanned"]), _is_cut(found))


async def _prove_wallets(connection: AsyncConnection, *, now: datetime) -> Proof:
    """The ledger's own proof, in the words of gaps: it looks at what is new, and once a day at everything."""
    proof = await proofs.prove(connection, now=now)
    found = [
        Gap(
            pair=Pair.LEDGER_WALLETS,
            scope=currency,
            unit=Unit.PICOS,
            kind="unbalanced",
            left=off,
            right=0,
            explanation=f"all entries in {currency} sum to {off}",
        )
        for currency, off in proof.unbalanced.items()
    ]
    found += [gap for drift in proof.drifts for gap in _drifting(drift)]
    wallets = (await connection.execute(_WALLETS)).scalar_one()
    return Proof(Pair.LEDGER_WALLETS, None, found[:MOST_GAPS], int(wallets), _is_cut(found))


def _is_cut(found: Sequence[Gap]) -> bool:
    return len(found) >= MOST_GAPS


def _drifting(drift: Drift) -> Iterator[Gap]:
    """Where a wallet's balance differs: facts against ledger, ledger against allowance."""
    told = {
        "ledger_differs": (drift.by_grants_and_events, drift.by_ledger),
        "allowance_differs": (drift.by_ledger, drift.by_allowance),
    }
    for kind, (left, right) in told.items():
        if left != right:
            yield Gap(
                pair=Pair.LEDGER_WALLETS,
                scope=drift.wallet_id,
                unit=Unit.PICOS,
                kind=kind,
                left=left,
                right=right,
                explanation=f"grants, corrections and events say {drift.by_grants_and_events}, the ledger "
                f"{drift.by_ledger}, the allowance {drift.by_allowance}",
            )


def _gap(pair: Pair, row: RowMapping) -> Gap:
    left, right = row["left_value"], row["right_value"]
    return Gap(
        pair=pair,
        scope=row["scope"],
        unit=Unit(row["unit"]),
        kind=row["kind"],
        left=None if left is None else int(left),
        right=None if right is None else int(right),
        explanation=row["explanation"],
        tenant_id=row["tenant_id"],
        backend_id=row["backend_id"],
        model_id=row["model_id"],
    )
