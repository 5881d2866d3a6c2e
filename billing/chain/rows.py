"""Reads the rows that lines are made of: the same for sealing and for handing out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.chain.lines import COLUMNS, correction_line, event_line
from billing.journal.tables import usage_event
from billing.ledger.tables import usage_correction

_CHUNK = 1000
_PREFIX = "correction_"


class Kind(StrEnum):
    """What a line tells of."""

    EVENT = "event"
    CORRECTION = "correction"


class Posted(NamedTuple):
    """A line before it has its place.   id: of the request or the correction.   at: its posting."""

    id: str
    tenant_id: str
    at: datetime
    line: dict[str, Any]


async def read_lines(
    connection: AsyncConnection, line_ids: Sequence[str], *, kind: Kind
) -> AsyncIterator[Posted]:
    """The lines of these ids, in no order."""
    query = {Kind.EVENT: _EVENTS, Kind.CORRECTION: _CORRECTIONS}[kind]
    for start in range(0, len(line_ids), _CHUNK):
        chunk = query.where(_KEYS[kind].in_(line_ids[start : start + _CHUNK]))
        for row in (await connection.execute(chunk)).mappings():
            yield posted_of(row, kind=kind)


def posted_of(row: Mapping[str, Any], *, kind: str) -> Posted:
    """The line of a row that has `COLUMNS_OF_BOTH`; of an event, it may lack those of corrections."""
    if kind == Kind.EVENT:
        return Posted(row["request_id"], row["tenant_id"], row["posted_at"], event_line(row))
    own = {name: row[_PREFIX + name] for name in _OF_CORRECTION}
    return Posted(own["id"], row["tenant_id"], own["at"], correction_line(own, row))


_OF_CORRECTION = tuple(column.name for column in usage_correction.columns)
_OF_EVENT = tuple(usage_event.c[name] for name in COLUMNS)
COLUMNS_OF_BOTH = (*_OF_EVENT, *(usage_correction.c[name].label(_PREFIX + name) for name in _OF_CORRECTION))
"""The columns that lines are made of; those of corrections under names of their own."""
_EVENTS: Select[Any] = select(*_OF_EVENT)
_CORRECTIONS: Select[Any] = select(*COLUMNS_OF_BOTH).join_from(
    usage_correction, usage_event, usage_correction.c.request_id == usage_event.c.request_id
)
_KEYS = {Kind.EVENT: usage_event.c.request_id, Kind.CORRECTION: usage_correction.c.id}
