"""What was parked: the holds that it keeps counted, its second try, and its dismissal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, Row, Text, any_, bindparam, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import AllowanceId, IncarnationId, RequestId
from billing.journal.facts import Facts
from billing.journal.failures import REFUSALS, is_poison, words
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, decode
from billing.journal.posting import Posted, post_charges
from billing.journal.tables import parked_record
from billing.quota import authority

_OPEN = parked_record.c.resolved_at.is_(None)
_TAKEN = text("""
SELECT EXISTS (SELECT FROM usage_event WHERE request_id = :request AND incarnation_id = :incarnation)
  OR EXISTS (SELECT FROM parked_record WHERE request_id = :request AND incarnation_id = :incarnation
    AND resolved_at IS NOT NULL AND id <> :id)
""")


async def count(connection: AsyncConnection) -> int:
    """Records that wait for someone to look at them."""
    query = select(func.count()).select_from(parked_record).where(_OPEN)
    return int((await connection.execute(query)).scalar_one())


async def holds(connection: AsyncConnection, incarnation_id: IncarnationId) -> dict[AllowanceId, int]:
    """What the unresolved records of an incarnation may still take, by allowance. Read it under its lock."""
    parked = parked_record.c
    query = select(parked.holds).where(parked.incarnation_id == incarnation_id, _OPEN)
    totals: Counter[AllowanceId] = Counter()
    for held in (await connection.execute(query)).scalars():
        for allowance_id, amount in held:
            totals[AllowanceId(allowance_id)] += int(amount)
    return dict(totals)


async def of(connection: AsyncConnection, incarnation_id: IncarnationId) -> set[RequestId]:
    """The requests of an incarnation that have ever been parked, resolved or not."""
    parked = parked_record.c
    query = select(parked.request_id).where(
        parked.incarnation_id == incarnation_id, parked.request_id.is_not(None)
    )
    return {RequestId(request_id) for request_id in (await connection.execute(query)).scalars()}


async def among(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, request_ids: Iterable[RequestId]
) -> set[RequestId]:
    """Which of the requests have been parked, resolved or not."""
    parked = parked_record.c
    wanted = any_(bindparam("wanted", list(request_ids), ARRAY(Text)))
    query = select(parked.request_id).where(
        parked.incarnation_id == incarnation_id, parked.request_id == wanted
    )
    return {RequestId(request_id) for request_id in (await connection.execute(query)).scalars()}


class Parked(NamedTuple):
    """A parked record, for people.   charge: what it would have been, if it is one.   amounts in picos."""

    id: str
    incarnation_id: str
    file_offset: int
    request_id: str | None
    reason: str
    holds: tuple[tuple[str, int], ...]
    parked_at: datetime
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    resolved_because: str | None
    charge: tuple[Admitted, Settled] | None


async def list_parked(
    connection: AsyncConnection, *, resolved: bool, before: int | None, limit: int
) -> list[Parked]:
    """Parked records, the newest first: those that wait, or those that were resolved."""
    parked = parked_record.c
    query = select(parked_record).where(parked.resolved_at.is_not(None) if resolved else _OPEN)
    if before is not None:
        query = query.where(parked.id < before)
    rows = await connection.execute(query.order_by(parked.id.desc()).limit(limit))
    return [_parked(row) for row in rows]


async def get(connection: AsyncConnection, parked_id: int) -> Parked:
    """Raises Rejected (404) if there is none."""
    query = select(parked_record).where(parked_record.c.id == parked_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise _unknown()
    return _parked(row)


async def retry(
    connection: AsyncConnection, parked_id: int, *, now: datetime, by: str | None = None
) -> Posted:
    """Post a parked charge whose cause was mended, and resolve it, within the caller's transaction.

    If the request has an event by now, nothing more is charged, and what the record holds is free again.
    Raises Rejected if there is no such open record, Conflict if it still can't be posted: roll back then.
    """
    row = await _open_row(connection, parked_id)
    charge = _charge(row)
    if charge is None:
        raise Conflict("this record is no charge", parked_id=parked_id)
    admitted, settled = charge
    entry = Charge(row.file_offset, row.file_offset, admitted, settled, row.admitted, row.record)
    facts = Facts()
    await facts.load(connection, [entry])
    if flaw := facts.flaw(entry):
        raise Conflict(flaw, parked_id=parked_id)
    incarnation_id = IncarnationId(row.incarnation_id)
    try:
        posted = await post_charges(connection, [entry], incarnation_id=incarnation_id, facts=facts, now=now)
    except REFUSALS as error:
        if not is_poison(error):
            raise
        raise Conflict(words(error), parked_id=parked_id) from error
    await _resolve(connection, parked_id, resolution="posted", resolved_at=now, resolved_by=by)
    if not posted.events:
        await _free(connection, row)
    return posted


async def dismiss(
    connection: AsyncConnection, parked_id: int, *, by: str, because: str, now: datetime
) -> None:
    """Resolve a parked record without posting it: it is never billed, and what it held is free again.

    Its bytes stay. What its engine did for it shows in reconciliation as tokens without an event. Raises
    Rejected (404) if there is no such open record.
    """
    row = await _open_row(connection, parked_id)
    await _resolve(
        connection,
        parked_id,
        resolution="dismissed",
        resolved_at=now,
        resolved_by=by,
        resolved_because=because,
    )
    await _free(connection, row)


async def _free(connection: AsyncConnection, row: Row[Any]) -> None:
    """Free what a record holds, once a request: its own event, or another row of it, may have done so."""
    incarnation_id = IncarnationId(row.incarnation_id)
    await authority.lock(connection, incarnation_id)
    values = {"id": row.id, "request": row.request_id, "incarnation": incarnation_id}
    if not (await connection.execute(_TAKEN, values)).scalar_one():
        uses = [(AllowanceId(allowance_id), int(amount), 0) for allowance_id, amount in row.holds]
        await authority.post(connection, incarnation_id, uses)


async def _open_row(connection: AsyncConnection, parked_id: int) -> Row[Any]:
    query = select(parked_record).where(parked_record.c.id == parked_id, _OPEN)
    row = (await connection.execute(query.with_for_update(of=parked_record))).one_or_none()
    if row is None:
        raise _unknown()
    return row


async def _resolve(connection: AsyncConnection, parked_id: int, **values: Any) -> None:
    await connection.execute(update(parked_record).where(parked_record.c.id == parked_id).values(values))


def _unknown() -> Rejected:
    return Rejected(RejectReason.NOT_FOUND, "there is no such parked record", status=404)


def _charge(row: Row[Any]) -> tuple[Admitted, Settled] | None:
    """The records of a parked charge, None of anything else."""
    if row.admitted is None:
        return None
    admitted, settled = decode(row.admitted), decode(row.record)
    if not isinstance(admitted, Admitted) or not isinstance(settled, Settled):
        return None
    return admitted, settled


def _parked(row: Row[Any]) -> Parked:
    fields = {name: getattr(row, name) for name in Parked._fields if name not in ("id", "holds", "charge")}
    holds = tuple((allowance_id, int(amount)) for allowance_id, amount in row.holds)
    return Parked(id=str(row.id), holds=holds, charge=_charge(row), **fields)
