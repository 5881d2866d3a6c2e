"""Posts a batch of a journal's entries: events, roll-ups, ledger, leases and position in one transaction.

Everything hangs on the insertion of the events: what was there already changes nothing anywhere else.
Locks come in one order everywhere (roll-ups sorted, accounts sorted, then the incarnation and its
allowances sorted), the contended ones last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.ids import IncarnationId, RequestId, TenantId, TransactionId
from billing.journal.conflicts import tell_conflicts
from billing.journal.facts import Facts
from billing.journal.join import Charge, Entry, Orphan, Refusal, Unreadable
from billing.journal.rows import EVENT_COLUMNS, event_row, parked_row, refusal_row
from billing.journal.tables import journal_position, parked_record, refusal
from billing.ledger import posting as ledger
from billing.ledger.model import Reference, Transaction
from billing.quota import authority

_Payer = tuple[TenantId, str]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a journal is posted, and from where to read it again after a restart."""

    posted: int
    resume: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of one journal in the order of the file, and the position that they lead to."""

    incarnation_id: IncarnationId
    entries: Sequence[Entry]
    position: Position


@dataclass(frozen=True, slots=True)
class Posted:
    """What a batch changed.   unleased: picos that no lease of a live process covered; should be 0."""

    events: int = 0
    cost: int = 0
    repeats: int = 0
    conflicts: int = 0
    refusals: int = 0
    parked: int = 0
    unleased: int = 0


_STAGE = text("CREATE TEMP TABLE IF NOT EXISTS usage_stage (LIKE usage_event) ON COMMIT DELETE ROWS")
_INSERT_EVENTS = text(f"""
INSERT INTO usage_event ({", ".join(EVENT_COLUMNS)})
SELECT {", ".join(EVENT_COLUMNS)} FROM usage_stage ORDER BY request_id
ON CONFLICT (request_id) DO NOTHING RETURNING request_id
""")  # noqa: S608
_KEY = "tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source"
_SUMS = (
    "input",
    "input_cached",
    "input_cache_write",
    "output",
    "reasoning",
    "billed_input",
    "billed_input_cached",
    "billed_input_cache_write",
    "billed_output",
    "cost",
)
_ROLL_UP = text(f"""
INSERT INTO usage_rollup (bucket, {_KEY}, requests, {", ".join(_SUMS)})
SELECT date_bin('15 minutes', admitted_at, 'epoch') AS bucket, {_KEY}, count(*),
  {", ".join(f"sum({name})" for name in _SUMS)}
FROM usage_stage WHERE request_id = ANY (:fresh) GROUP BY bucket, {_KEY} ORDER BY bucket, {_KEY}
ON CONFLICT (bucket, {_KEY}) DO UPDATE SET requests = usage_rollup.requests + EXCLUDED.requests,
  {", ".join(f"{name} = usage_rollup.{name} + EXCLUDED.{name}" for name in _SUMS)}
""")  # noqa: S608


async def post(connection: AsyncConnection, batch: Batch, *, facts: Facts, now: datetime) -> Posted:
    """Post a batch within the caller's transaction. Repeating it, in whole or in part, changes nothing.

    What `facts` finds flawed is parked. Raises what the database says of a row that it refuses.
    """
    charges = [entry for entry in batch.entries if isinstance(entry, Charge)]
    await facts.load(connection, charges)
    flawed: list[tuple[Entry, str]] = [(charge, flaw) for charge in charges if (flaw := facts.flaw(charge))]
    unsound = {id(charge) for charge, _ in flawed}
    sound = [charge for charge in charges if id(charge) not in unsound]
    flawed += [(entry, "it is no record") for entry in batch.entries if isinstance(entry, Unreadable)]
    refused = await _post_refusals(connection, batch)
    parked = await park(connection, flawed, incarnation_id=batch.incarnation_id, now=now)
    await advance(connection, batch.incarnation_id, position=batch.position, now=now)
    posted = await post_charges(connection, sound, incarnation_id=batch.incarnation_id, facts=facts, now=now)
    return replace(posted, refusals=refused, parked=parked)


async def post_charges(
    connection: AsyncConnection,
    charges: Sequence[Charge],
    *,
    incarnation_id: IncarnationId,
    facts: Facts,
    now: datetime,
) -> Posted:
    """Post sound charges: of each request the first, and that only if it has no event yet."""
    if not charges:
        return Posted()
    first: dict[RequestId, Charge] = {}
    for charge in charges:
        first.setdefault(charge.admitted.request_id, charge)
    payers = _transaction_ids(first.values())
    rows = [
        event_row(
            charge,
            incarnation_id=incarnation_id,
            transaction_id=payers[_payer(charge)] if charge.settled.cost_picos else None,
            purse_use=facts.purse_use(charge),
            posted_at=now,
        )
        for charge in first.values()
    ]
    fresh_ids = await _insert_events(connection, rows)
    fresh = [charge for request_id, charge in first.items() if request_id in fresh_ids]
    taken = {id(charge) for charge in fresh}
    old = [charge for charge in charges if id(charge) not in taken]
    conflicts = await tell_conflicts(connection, old, incarnation_id=incarnation_id, now=now)
    if not fresh:
        return Posted(repeats=len(old) - conflicts, conflicts=conflicts)
    await connection.execute(_ROLL_UP, {"fresh": sorted(fresh_ids)})
    await ledger.post(connection, _transactions(fresh, payers, now=now))
    uses = [(used.allowance_id, used.taken, used.used) for charge in fresh for used in charge.settled.used]
    unleased = await authority.post(connection, incarnation_id, uses)
    return Posted(
        events=len(fresh),
        cost=sum(charge.settled.cost_picos for charge in fresh),
        repeats=len(old) - conflicts,
        conflicts=conflicts,
        unleased=sum(unleased.values()),
    )


async def park(
    connection: AsyncConnection,
    flawed: Iterable[tuple[Entry | Orphan, str]],
    *,
    incarnation_id: IncarnationId,
    now: datetime,
) -> int:
    """Set entries aside, each once; returns how many were new. Their holds stay counted."""
    rows = [
        parked_row(entry, incarnation_id=incarnation_id, reason=reason, parked_at=now)
        for entry, reason in flawed
    ]
    if not rows:
        return 0
    statement = insert(parked_record).on_conflict_do_nothing().returning(parked_record.c.id)
    return len((await connection.execute(statement, rows)).all())


async def advance(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, position: Position, now: datetime
) -> None:
    """Remember how far a journal is posted. Never goes back."""
    statement = insert(journal_position).values(
        incarnation_id=incarnation_id,
        posted_offset=position.posted,
        resume_offset=position.resume,
        posted_at=now,
    )
    known, told = journal_position.c, statement.excluded
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[known.incarnation_id],
            set_={
                "posted_offset": func.greatest(known.posted_offset, told.posted_offset),
                "resume_offset": func.greatest(known.resume_offset, told.resume_offset),
                "posted_at": told.posted_at,
            },
        )
    )


def _payer(charge: Charge) -> _Payer:
    return charge.admitted.tenant_id, charge.admitted.currency


def _transaction_ids(charges: Iterable[Charge]) -> dict[_Payer, TransactionId]:
    """An id for each payer's ledger transaction, known before it is posted: events never change."""
    payers = {_payer(charge) for charge in charges if charge.settled.cost_picos}
    return {payer: ids.transaction_id() for payer in payers}


def _transactions(
    fresh: Iterable[Charge], payers: dict[_Payer, TransactionId], *, now: datetime
) -> list[Transaction]:
    """One transaction for each payer; named by its first request, which no other batch can have."""
    by_payer: dict[_Payer, list[Charge]] = defaultdict(list)
    for charge in fresh:
        if charge.settled.cost_picos:
            by_payer[_payer(charge)].append(charge)
    return [
        Transaction(
            id=payers[tenant_id, currency],
            reference=Reference("usage", "batch", min(charge.admitted.request_id for charge in charges)),
            tenant_id=tenant_id,
            currency=currency,
            at=now,
            entries=ledger.usage_entries(sum(charge.settled.cost_picos for charge in charges)),
        )
        for (tenant_id, currency), charges in sorted(by_payer.items())
    ]


async def _insert_events(connection: AsyncConnection, rows: list[tuple[Any, ...]]) -> set[RequestId]:
    await connection.execute(_STAGE)
    driver = (await connection.get_raw_connection()).driver_connection
    await driver.copy_records_to_table("usage_stage", records=rows, columns=EVENT_COLUMNS)  # type: ignore[union-attr]
    return set((await connection.execute(_INSERT_EVENTS)).scalars())


async def _post_refusals(connection: AsyncConnection, batch: Batch) -> int:
    rows = {
        entry.refused.request_id: refusal_row(entry, incarnation_id=batch.incarnation_id)
        for entry in batch.entries
        if isinstance(entry, Refusal)
    }
    if not rows:
        return 0
    statement = insert(refusal).on_conflict_do_nothing().returning(refusal.c.request_id)
    return len((await connection.execute(statement, list(rows.values()))).all())
