"""Posts a batch of a journal's entries: events, roll-ups, ledger, leases and position in one transaction.

Everything hangs on the insertion of the events: what was there already changes nothing anywhere else.
Locks come in one order everywhere (roll-ups sorted, accounts sorted, then the incarnation and its
allowances sorted), the contended ones last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import IncarnationId, RequestId, TenantId
from billing.journal.conflicts import tell_conflicts
from billing.journal.encoding import EVENT_COLUMNS, HEAD, TAIL, EventRows
from billing.journal.facts import Facts
from billing.journal.join import Charge, Entry, Orphan, Refusal, Unreadable
from billing.journal.rows import parked_row, refusal_row
from billing.journal.tables import journal_position, parked_record, refusal
from billing.journal.tally import Tally
from billing.ledger import posting as ledger
from billing.quota import authority


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


_EVENTS = ", ".join(EVENT_COLUMNS)
_STAGE = text(
    "CREATE TEMP TABLE IF NOT EXISTS usage_stage (LIKE usage_event INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
)
_INSERT_EVENTS = text(f"""
INSERT INTO usage_event ({_EVENTS}) SELECT {_EVENTS} FROM usage_stage ORDER BY request_id
ON CONFLICT (request_id) DO NOTHING RETURNING request_id
""")  # noqa: S608
_CHUNK_ROWS = 256
"""Rows handed to the database at once: it takes them in while the next are encoded."""


async def post(
    connection: AsyncConnection, batch: Batch, *, facts: Facts, now: datetime, all_new: bool = False
) -> Posted:
    """Post a batch within the caller's transaction. Repeating it, in whole or in part, changes nothing.

    What `facts` finds flawed is parked. all_new: no event of it was posted before; half the work, and a
    unique violation if it is wrong. Raises what the database says of a row that it refuses.
    """
    charges = [entry for entry in batch.entries if isinstance(entry, Charge)]
    await facts.load(connection, charges)
    flawed: list[tuple[Entry, str]] = [(charge, flaw) for charge in charges if (flaw := facts.flaw(charge))]
    if flawed:
        unsound = {id(charge) for charge, _ in flawed}
        charges = [charge for charge in charges if id(charge) not in unsound]
    flawed += [(entry, "it is no record") for entry in batch.entries if isinstance(entry, Unreadable)]
    refused = await _post_refusals(connection, batch)
    parked = await park(connection, flawed, incarnation_id=batch.incarnation_id, now=now)
    await advance(connection, batch.incarnation_id, position=batch.position, now=now)
    poster = _Poster(connection, batch.incarnation_id, facts=facts, now=now)
    posted = await poster.post(charges, all_new=all_new)
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
    return await _Poster(connection, incarnation_id, facts=facts, now=now).post(charges, all_new=False)


def _by_tenant(charge: Charge) -> tuple[TenantId, RequestId]:
    """The order in which the database takes events in most cheaply: its indexes begin with the tenant."""
    return charge.admitted.tenant_id, charge.admitted.request_id


class _Poster:
    """Posts sound charges of one incarnation in the caller's transaction."""

    def __init__(
        self, connection: AsyncConnection, incarnation_id: IncarnationId, *, facts: Facts, now: datetime
    ) -> None:
        self._connection = connection
        self._incarnation_id = incarnation_id
        self._facts = facts
        self._now = now
        self._rows = EventRows(incarnation_id, posted_ms=round(now.timestamp() * 1000))

    async def post(self, charges: Sequence[Charge], *, all_new: bool) -> Posted:
        if not charges:
            return Posted()
        first: dict[RequestId, Charge] = {}
        for charge in charges:
            first.setdefault(charge.admitted.request_id, charge)
        tally = Tally()
        if all_new:
            grouped = sorted(first.values(), key=_by_tenant)
            await self._copy("usage_event", self._encoded(grouped, tally, count=True))
            taken = {id(charge) for charge in first.values()} if len(first) < len(charges) else None
        else:
            taken = await self._insert(first, tally)
        old = [] if taken is None else [charge for charge in charges if id(charge) not in taken]
        conflicts = await tell_conflicts(
            self._connection, old, incarnation_id=self._incarnation_id, now=self._now
        )
        unleased = await self._follow(tally)
        return Posted(
            events=tally.events,
            cost=tally.cost,
            repeats=len(old) - conflicts,
            conflicts=conflicts,
            unleased=unleased,
        )

    async def _insert(self, first: dict[RequestId, Charge], tally: Tally) -> set[int]:
        """Insert those that have no event yet, by way of a stage; returns which they were."""
        await self._connection.execute(_STAGE)
        await self._copy("usage_stage", self._encoded(first.values(), tally, count=False))
        inserted = (await self._connection.execute(_INSERT_EVENTS)).scalars()
        fresh = [first[RequestId(request_id)] for request_id in inserted]
        for charge in fresh:
            tally.add(charge)
        return {id(charge) for charge in fresh}

    async def _follow(self, tally: Tally) -> int:
        """What new events move elsewhere; returns what no lease covered of it."""
        if not tally.events:
            return 0
        await tally.roll_up(self._connection)
        await ledger.post(self._connection, tally.transactions(now=self._now))
        unleased = await authority.post(self._connection, self._incarnation_id, tally.uses)
        money = self._facts.allowances
        return sum(amount for each, amount in unleased.items() if money[each].what == "picos")

    async def _encoded(self, charges: Iterable[Charge], tally: Tally, *, count: bool) -> AsyncIterator[bytes]:
        rows = [HEAD]
        for charge in charges:
            rows.append(
                self._rows.encode(
                    charge,
                    transaction_id=tally.transaction_of(charge),
                    purse_use=self._facts.purse_use(charge),
                )
            )
            if count:
                tally.add(charge)
            if len(rows) >= _CHUNK_ROWS:
                yield b"".join(rows)
                rows.clear()
        yield b"".join((*rows, TAIL))

    async def _copy(self, table: str, rows: AsyncIterator[bytes]) -> None:
        driver = (await self._connection.get_raw_connection()).driver_connection
        await driver.copy_to_table(table, source=rows, columns=EVENT_COLUMNS, format="binary")  # type: ignore[union-attr]


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
