"""What was parked: the holds that it keeps counted, and its second try once the cause is mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ARRAY, Text, any_, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import AllowanceId, IncarnationId, RequestId
from billing.journal.facts import Facts
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, decode
from billing.journal.posting import Posted, post_charges
from billing.journal.tables import parked_record

_OPEN = parked_record.c.resolved_at.is_(None)


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


async def retry(connection: AsyncConnection, parked_id: int, *, now: datetime) -> Posted:
    """Post a parked charge whose cause was mended, and resolve it, within the caller's transaction.

    Raises Rejected if there is no such open record, Conflict if it still can't be posted.
    """
    parked = parked_record.c
    query = select(parked_record).where(parked.id == parked_id, _OPEN).with_for_update(of=parked_record)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise Rejected(RejectReason.NOT_FOUND, "there is no such parked record", status=404)
    admitted, settled = row.admitted and decode(row.admitted), decode(row.record)
    if not isinstance(admitted, Admitted) or not isinstance(settled, Settled):
        raise Conflict("this record is no charge", parked_id=parked_id)
    charge = Charge(row.file_offset, row.file_offset, admitted, settled, row.admitted, row.record)
    facts = Facts()
    await facts.load(connection, [charge])
    if flaw := facts.flaw(charge):
        raise Conflict(flaw, parked_id=parked_id)
    incarnation_id = IncarnationId(row.incarnation_id)
    posted = await post_charges(connection, [charge], incarnation_id=incarnation_id, facts=facts, now=now)
    await connection.execute(
        update(parked_record).where(parked.id == parked_id).values(resolved_at=now, resolution="posted")
    )
    return posted
