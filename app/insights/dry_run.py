"""A limit tried on the past: how many of the requests that were served it would have refused.

Exact for this one limit by what is on record. The record can't say what refused requests would have used, nor
whether a client that is refused tries again; and it keeps of money what a request needed, of tokens only what
it used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import from_ms
from app.identity.errors import invalid
from app.insights.buckets import Width, edges
from app.insights.limits import Place
from app.insights.replay import Bucket, Ceiling, Demand
from billing.quota.terms import CALENDAR, Subject, What

MOST_REQUESTS = 200_000
MOST_DAYS = 92
FIRST = 10
"""Refused requests that are named."""
_CHUNK = 2_000
"""Requests between which others of the process have their turn."""

_INPUT = "billed_input + billed_input_cached + billed_input_cache_write"
_NEEDED_AND_USED: dict[What, tuple[str, str]] = {
    "picos": ("hold", "cost"),
    "requests": ("1", "1"),
    "concurrent": ("1", "0"),
    "tokens": (f"{_INPUT} + billed_output", f"{_INPUT} + billed_output"),
    "input_tokens": (_INPUT, _INPUT),
    "output_tokens": ("billed_output", "billed_output"),
    "max_output": ("billed_output", "0"),
    "max_context": (f"{_INPUT} + billed_output", "0"),
}
_SCOPED = """tenant_id = :tenant AND (CAST(:project AS text) IS NULL OR project_id = :project)
  AND (CAST(:key AS text) IS NULL OR key_id = :key)"""
_EVENTS = """
SELECT request_id, floor(extract(epoch FROM admitted_at) * 1000)::bigint AS at_ms,
  floor(extract(epoch FROM {ended}) * 1000)::bigint AS end_ms, {needed} AS needed, {used} AS used
FROM usage_event WHERE admitted_at >= :start AND admitted_at < :end AND {scoped}
  AND (CAST(:model AS text) IS NULL OR model_id = :model)
ORDER BY admitted_at, request_id LIMIT :most
"""
_REFUSED_THEN = text(f"""
SELECT count(*) FROM refusal WHERE at >= :start AND at < :end AND {_SCOPED} AND allowance_id IS NOT NULL
  AND (CAST(:model AS text) IS NULL OR model_name = (SELECT name FROM model WHERE id = :model))
""")  # noqa: S608 - pieces of our own


class Tried(msgspec.Struct, frozen=True):
    """The limit to try, where.   amount: of a rate, per minute.   burst: of a rate; None: a minute's."""

    place: Place
    subject: Subject
    amount: int
    burst: int | None = None


class Day(msgspec.Struct, frozen=True):
    """A day of the tenant's calendar."""

    day: date
    requests: int
    refused: int


class Found(msgspec.Struct, frozen=True):
    """What a limit would have done in [start, end): a budget's range begins at a period's start.

    first: the first refused requests.   refused_then: what limits of that time refused, which is not in it.
    """

    start: datetime
    end: datetime
    requests: int
    refused: int
    refused_then: int
    first: list[Demand]
    days: list[Day]


async def dry_run(
    connection: AsyncConnection,
    tried: Tried,
    *,
    start: datetime,
    end: datetime,
    zone: ZoneInfo,
    most: int = MOST_REQUESTS,
) -> Found:
    """What the limit would have refused. Raises Rejected (400) if the range has too many days or requests."""
    if start >= end:
        invalid("A range ends after it starts.", param="to")
    start = _begin(start, tried.subject, zone=zone)
    if end - start > timedelta(days=MOST_DAYS):
        invalid(f"A limit is tried on {MOST_DAYS} days at most: give a later start.", param="from")
    query = _asked(tried, start=start, end=end)
    days = edges(start, end, width=Width.DAY, zone=zone)
    tally = _Tally(_limit(tried, days, zone=zone), [_ms(each) for each in days])
    needed, used = _NEEDED_AND_USED[tried.subject.what]
    # Of a rate all is consumed from the first moment on: nothing of it is known to be held and not used.
    ended = "admitted_at" if tried.subject.window == "minute" else "settled_at"
    statement = text(_EVENTS.format(needed=needed, used=used, ended=ended, scoped=_SCOPED))
    rows = await connection.stream(statement, query | {"most": most + 1})
    async for chunk in rows.partitions(_CHUNK):
        for row in chunk:
            tally.take(Demand(row.request_id, row.at_ms, row.end_ms, int(row.needed), int(row.used)))
        if tally.requests > most:
            invalid(f"There are more than {most} requests in this range: take a shorter one.", param="from")
    refused_then = int(await connection.scalar(_REFUSED_THEN, query) or 0)
    return Found(
        start,
        end,
        tally.requests,
        tally.refused,
        refused_then,
        tally.first,
        list(tally.days(days, zone=zone)),
    )


class _Tally:
    """Counts what a limit admits and refuses, by day."""

    def __init__(self, limit: Bucket | Ceiling, days_ms: Sequence[int]) -> None:
        self._limit = limit
        self._days_ms = days_ms
        self._by_day = [[0, 0] for _ in days_ms]
        self.first: list[Demand] = []
        self.requests = 0
        self.refused = 0

    def take(self, demand: Demand) -> None:
        admitted = self._limit.admits(demand)
        day = self._by_day[bisect_right(self._days_ms, demand.at_ms) - 1]
        day[0] += 1
        self.requests += 1
        if admitted:
            return
        day[1] += 1
        self.refused += 1
        if len(self.first) < FIRST:
            self.first.append(demand)

    def days(self, cut: Sequence[datetime], *, zone: ZoneInfo) -> Iterator[Day]:
        """Every day of the range, also those on which nothing came."""
        for start, (requests, refused) in zip(cut[:-1], self._by_day[:-1], strict=True):
            yield Day(start.astimezone(zone).date(), requests, refused)


def starts(window: str, cut: Sequence[datetime], *, zone: ZoneInfo) -> list[datetime]:
    """Those of the midnights `cut` at which a day, week (from Monday) or month of the zone begins."""
    return [each for each in cut if _begins(window, each.astimezone(zone).date())]


def _begins(window: str, day: date) -> bool:
    if window == "week":
        return day.weekday() == 0
    return window == "day" or day.day == 1


def _limit(tried: Tried, days: Sequence[datetime], *, zone: ZoneInfo) -> Bucket | Ceiling:
    window = tried.subject.window
    if window == "request":
        return Ceiling(tried.amount)
    if window == "minute":
        burst = tried.amount if tried.burst is None else tried.burst
        return Bucket(burst, per_minute=tried.amount)
    if window == "running":
        return Bucket(tried.amount)
    return Bucket(tried.amount, full_at_ms=[_ms(each) for each in starts(window, days[:-1], zone=zone)])


def _begin(start: datetime, subject: Subject, *, zone: ZoneInfo) -> datetime:
    """The start of the range; for a budget, of the period in which it lies: what was used before counts."""
    if subject.window not in CALENDAR:
        return start
    day = start.astimezone(zone).date()
    if subject.window == "week":
        day -= timedelta(days=day.weekday())
    if subject.window == "month":
        day = day.replace(day=1)
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _asked(tried: Tried, *, start: datetime, end: datetime) -> dict[str, Any]:
    place, kind = tried.place, tried.subject.scope_kind
    return {
        "tenant": place.tenant_id,
        "project": place.project_id if kind != "tenant" else None,
        "key": place.key_id if kind == "key" else None,
        "model": tried.subject.model_id,
        "start": start,
        "end": end,
    }


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def moment_of(demand: Demand) -> datetime:
    """When a request was admitted."""
    return from_ms(demand.at_ms)
