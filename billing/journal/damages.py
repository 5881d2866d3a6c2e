"""Places where a journal is not what its writer wrote: recorded, and an operator's matter to close."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import IncarnationId
from billing.journal.tables import journal_damage
from billing.journal.tail import Damage

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
