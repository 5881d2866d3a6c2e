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
from billing.metering.model import NOTHING, Outcome
from billing.reconcile.explain import Cell, Place

PARKED_WITHIN = timedelta(days=2)
"""From its end to its parking: as long as a settler may have been away."""


async def cells_set_aside(
    connection: AsyncConnection, backend_id: BackendId, *, begins: datetime, ends: datetime
) -> list[Cell]:
    """The requests of a backend that ended in [begins, ends] and were parked and not posted since."""
    parked = parked_record.c
    unposted = or_(parked.resolved_at.is_(None), parked.resolution == "dismissed")
    within = parked.parked_at.between(begins, ends + PARKED_WITHIN)
    rows = await connection.execute(select(parked.admitted, parked.record).where(within, unposted))
    ended = ((_settled(row.record), row.admitted) for row in rows)
    return [
        _cell(settled, admitted)
        for settled, admitted in ended
        if settled is not None
        and settled.backend_id == backend_id
        and begins <= from_ms(settled.at_ms) <= ends
    ]


def _settled(record: bytes) -> Settled | None:
    """A parked settlement; None of anything else."""
    try:
        settled = decode(record)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    return settled if isinstance(settled, Settled) else None


def _cell(settled: Settled, admitted: bytes | None) -> Cell:
    asked = decode(admitted) if admitted else None
    usage, bound = settled.usage, settled.unknown_bound or NOTHING
    return Cell(
        place=Place.SET_ASIDE,
        source=settled.usage_source,
        whole=settled.outcome is Outcome.COMPLETED,
        is_billed=False,
        choices=asked.choices if isinstance(asked, Admitted) else 1,
        requests=1,
        prompt=usage.total - usage.output,
        output=usage.output,
        bound_prompt=bound.input,
        bound_output=bound.output,
        billed_prompt=0,
        billed_output=0,
        lost=int(settled.outcome is Outcome.LOST),
    )
