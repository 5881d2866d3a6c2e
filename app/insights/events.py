"""A tenant's usage events and corrections, line by line in the order of its chain, and the chain's heads.

Lines are only ever added at the end, so pages neither repeat nor miss one, whatever is posted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, func, select, text, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.chain.lines import published, withheld_line
from billing.chain.link import Link, digest_of
from billing.chain.rows import COLUMNS_OF_BOTH, posted_of
from billing.chain.tables import usage_link
from billing.journal.tables import usage_event
from billing.ledger.tables import usage_correction

MOST_DAYS = 400
"""Most heads of an answer."""
WINDOW = 20_000
"""Links that one statement of a filtered download looks at: what is asked for may be rare, the chain long."""


class Place(NamedTuple):
    """A line's place in its tenant's chain."""

    day: date
    sequence: int


@dataclass(frozen=True)
class EventFilter:
    """Which lines of one tenant are asked for; None or empty: no restriction by that.

    first_day, end_day: days of the chain, [first, end).   start, end: moments of admission (of a
    correction: its posting).   withhold: what the others restrict away comes as its digest alone.
    window: links that one statement looks at.
    """

    tenant_id: str
    first_day: date | None = None
    end_day: date | None = None
    start: datetime | None = None
    end: datetime | None = None
    project_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    model_ids: tuple[str, ...] = ()
    withhold: bool = False
    window: int = WINDOW

    @property
    def leaves_out(self) -> bool:
        """True if there can be links without a line in the answer."""
        lists = (self.project_ids, self.key_ids, self.model_ids)
        return not self.withhold and (any(lists) or self.start is not None or self.end is not None)


class Told(NamedTuple):
    """A line as it is handed out: canonical JSON without its newline."""

    place: Place
    text: bytes


class Progress(NamedTuple):
    """How far a download has come.   until: the end of the window it is in.   windows: looked through."""

    after: Place | None
    until: Place | None = None
    windows: int = 0
    is_end: bool = False


class DayHead(NamedTuple):
    """The last line of a day.   is_open: no later day has begun, so more may follow."""

    day: date
    sequence: int
    hash: bytes
    is_open: bool


async def read_on(
    connection: AsyncConnection, only: EventFilter, *, progress: Progress, limit: int
) -> tuple[list[Told], Progress]:
    """At most `limit` lines more, and how far that is; fewer, even none, do not mean the end: `is_end` does.

    No statement looks at more than a window of the chain, however little of it is asked for.
    """
    after, until, windows, _ = progress
    if until is None and only.leaves_out:
        # Found before its lines are read: what is sealed meanwhile comes after it, or is read with them.
        until = await _window_end(connection, only, after=after)
    lines = await list_lines(connection, only, after=after, until=until, limit=limit)
    if len(lines) == limit:
        return lines, Progress(lines[-1].place, until, windows)
    return lines, Progress(until, None, windows + 1, is_end=until is None)


async def list_lines(
    connection: AsyncConnection,
    only: EventFilter,
    *,
    after: Place | None,
    until: Place | None = None,
    limit: int,
) -> list[Told]:
    """At most `limit` lines in the order of the chain, after a place and up to another."""
    query = _within(_lines_of(only), only, after=after)
    if until is not None:
        query = query.where(tuple_(until.day, until.sequence) >= _PLACE)
    return [_told(row) for row in (await connection.execute(query.limit(limit))).mappings()]


async def _window_end(connection: AsyncConnection, only: EventFilter, *, after: Place | None) -> Place | None:
    """The place a window of links further; None if the chain, or what is asked for of it, has no so many."""
    query = _within(select(usage_link.c.day, usage_link.c.sequence), only, after=after)
    found = (await connection.execute(query.offset(only.window - 1).limit(1))).one_or_none()
    return None if found is None else Place(found.day, found.sequence)


async def list_heads(connection: AsyncConnection, tenant_id: str, *, first: date, end: date) -> list[DayHead]:
    """The head of each day that has lines, in [first, end); the newest `MOST_DAYS` of them, oldest first."""
    asked = {"tenant_id": tenant_id, "first": first, "end": end, "most": MOST_DAYS}
    newest = select(func.max(usage_link.c.day)).where(usage_link.c.tenant_id == tenant_id)
    last = (await connection.execute(newest)).scalar_one()
    found = (await connection.execute(_HEADS, asked)).all()
    return [DayHead(row.day, row.sequence, row.hash, row.day == last) for row in reversed(found)]


# One step from day to day, each a look at the index: not a scan of all links.
_HEADS = text("""
WITH RECURSIVE head AS (
  (SELECT day, sequence, hash FROM usage_link
    WHERE tenant_id = :tenant_id AND day >= :first AND day < :end ORDER BY day DESC, sequence DESC LIMIT 1)
  UNION ALL
  SELECT earlier.day, earlier.sequence, earlier.hash FROM head CROSS JOIN LATERAL (
    SELECT day, sequence, hash FROM usage_link
    WHERE tenant_id = :tenant_id AND day >= :first AND day < head.day
    ORDER BY day DESC, sequence DESC LIMIT 1) AS earlier)
SELECT day, sequence, hash FROM head LIMIT :most
""")


_PLACE = tuple_(usage_link.c.day, usage_link.c.sequence)


def _lines_of(only: EventFilter) -> Select[Any]:
    """Links with their events and corrections; with `withhold`, all links, and whether each is asked for."""
    link, event = usage_link.c, usage_event.c
    of_correction = and_(link.kind == "correction", usage_correction.c.id == link.line_id)
    event_id = func.coalesce(usage_correction.c.request_id, link.line_id)
    wanted = _wanted(only)
    query = (
        select(link.day, link.sequence, link.previous, link.hash, link.kind, wanted.label("is_wanted"))
        .add_columns(*COLUMNS_OF_BOTH)
        .join_from(usage_link, usage_correction, of_correction, isouter=True)
        .join(usage_event, event.request_id == event_id)
    )
    return query if only.withhold else query.where(wanted)


def _within(query: Select[Any], only: EventFilter, *, after: Place | None) -> Select[Any]:
    """Links of the tenant and the days that are asked for, after a place, in the order of the chain."""
    link = usage_link.c
    query = query.where(link.tenant_id == only.tenant_id).order_by(link.day, link.sequence)
    if only.first_day is not None:
        query = query.where(link.day >= only.first_day)
    if only.end_day is not None:
        query = query.where(link.day < only.end_day)
    if only.start is not None and not only.withhold:  # a line is never linked before its day
        query = query.where(link.day >= only.start.date() - timedelta(days=1))
    return query if after is None else query.where(tuple_(after.day, after.sequence) < _PLACE)


def _wanted(only: EventFilter) -> ColumnElement[bool]:
    event = usage_event.c
    told_at = func.coalesce(usage_correction.c.at, event.admitted_at)
    lists = [
        (event.project_id, only.project_ids),
        (event.key_id, only.key_ids),
        (event.model_id, only.model_ids),
    ]
    restrictions: list[ColumnElement[bool]] = [column.in_(wanted) for column, wanted in lists if wanted]
    if only.start is not None:
        restrictions.append(told_at >= only.start)
    if only.end is not None:
        restrictions.append(told_at < only.end)
    return and_(true(), *restrictions)


def _told(row: Any) -> Told:
    posted = posted_of(row, kind=row["kind"])
    line = posted.line if row["is_wanted"] else withheld_line(posted.tenant_id, digest_of(posted.line))
    link = Link(row["day"].isoformat(), row["sequence"], row["previous"], row["hash"])
    return Told(Place(row["day"], row["sequence"]), published(line, link))
