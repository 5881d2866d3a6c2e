"""Places where a journal is not what its writer wrote: recorded, and an operator's matter to close."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Rejected, RejectReason
from app.core.ids import IncarnationId
from billing.journal import parking
from billing.journal.tables import journal_damage
from billing.journal.tail import Damage
from billing.quota import authority

_OPEN = journal_damage.c.released_at.is_(None)


async def tell(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, damage: Damage, now: datetime
) -> None:
    """Record a damage, once."""
    values = {
        "incarnation_id": incarnation_id,
        "file_offset": damage.start,
        "byte_count": damage.end - damage.start,
        "found_at": now,
    }
    await connection.execute(insert(journal_damage).values(values).on_conflict_do_nothing())


async def holds_open(connection: AsyncConnection, incarnation_id: IncarnationId) -> bool:
    """Whether a damage that nobody released keeps an incarnation open.

    What it spent in the damaged part nobody knows, so its leases stay counted.
    """
    query = select(journal_damage.c.file_offset).where(
        journal_damage.c.incarnation_id == incarnation_id, _OPEN
    )
    return (await connection.execute(query.limit(1))).first() is not None


async def count(connection: AsyncConnection) -> int:
    """Damages that nobody released."""
    query = select(func.count()).select_from(journal_damage).where(_OPEN)
    return int((await connection.execute(query)).scalar_one())


class Found(NamedTuple):
    """A damage, for people.   id: the name of its copy in `quarantine/`.   outstanding: what its incarnation
    still has of its leases, in picos over all allowances: the most that releasing it may cost.
    """

    id: str
    incarnation_id: str
    file_offset: int
    byte_count: int
    found_at: datetime
    released_at: datetime | None
    released_by: str | None
    released_because: str | None
    outstanding: int


async def list_damages(connection: AsyncConnection, *, limit: int) -> list[Found]:
    """Damaged places, the newest first."""
    damage = journal_damage.c
    query = select(journal_damage).order_by(damage.found_at.desc(), damage.incarnation_id, damage.file_offset)
    found = []
    for row in (await connection.execute(query.limit(limit))).all():
        left = await authority.outstanding(connection, IncarnationId(row.incarnation_id))
        name = f"{row.incarnation_id}.{row.file_offset}"
        found.append(Found._make((name, *row, sum(left.values()))))
    return found


async def release(
    connection: AsyncConnection, incarnation_id: IncarnationId, *, by: str, because: str, now: datetime
) -> None:
    """Close an incarnation with damaged places on an operator's word; its leases return but for what is
    parked. Raises Rejected (404) if it has no damage that is open.
    """
    damage = journal_damage.c
    closing = update(journal_damage).where(damage.incarnation_id == incarnation_id, _OPEN)
    values = {"released_at": now, "released_by": by, "released_because": because}
    if not (await connection.execute(closing.values(values))).rowcount:
        raise Rejected(RejectReason.NOT_FOUND, "there is no such open damage", status=404)
    await authority.lock(connection, incarnation_id)
    parked = await parking.holds(connection, incarnation_id)
    await authority.release(connection, incarnation_id, parked=parked)
