"""What ran on engines and is no event, because its record was parked or dismissed."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import from_ms
from app.core.ids import BackendId
from billing.journal.model import Admitted, Settled, decode
from billing.journal.tables import parked_record
from billing.metering.model import Outcome, Usage, UsageSource
from billing.reconcile.explain import Cell, Place

PARKED_WITHIN = timedelta(days=2)
"""From its end to its parking: as long as a settler may have been away."""


async def cells_set_aside(
    connection: AsyncConnection, *, begins: datetime, ends: datetime
) -> list[tuple[BackendId, Cell]]:
    """The requests of [begins, ends] that were parked and not posted since, one cell each, by backend."""
    parked = parked_record.c
    unposted = or_(parked.resolved_at.is_(None), parked.resolution == "dismissed")
    within = parked.parked_at.between(begins, ends + PARKED_WITHIN)
    rows = await connection.execute(select(parked.admitted, parked.record).where(within, unposted))
    found = (_cell(row.admitted, row.record) for row in rows)
    return [each[:2] for each in found if each is not None and begins <= each[2] <= ends]


def _cell(admitted: bytes | None, record: bytes) -> tuple[BackendId, Cell, datetime] | None:
    """Backend, cell and end of a parked settlement; None of anything else."""
    try:
        settled, asked = decode(record), decode(admitted) if admitted else None
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    if not isinstance(settled, Settled) or settled.backend_id is None:
        return None
    usage, bound = settled.usage, settled.unknown_bound or Usage()
    cell = Cell(
        place=Place.SET_ASIDE,
        source=settled.usage_source,
        whole=settled.outcome is Outcome.COMPLETED,
        is_billed=False,
        choices=asked.choices if isinstance(asked, Admitted) else 1,
        requests=1,
        prompt=usage.total - usage.output,
        output=usage.output,
        bound_prompt=bound.input if settled.usage_source is UsageSource.UNKNOWN else 0,
        bound_output=bound.output,
        billed_prompt=0,
        billed_output=0,
        lost=int(settled.outcome is Outcome.LOST),
    )
    return settled.backend_id, cell, from_ms(settled.at_ms)
