"""Where a range of time is cut: half-open buckets in a zone, whole days across daylight saving. Pure.

Sub-day buckets are equal steps of real time from the local midnight before the range; days run from
local midnight to local midnight, so one may have 23 or 25 hours. The first and the last bucket are
clipped to the range: no event is counted twice or lost, whatever the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise
from zoneinfo import ZoneInfo

MOST_BUCKETS = 10_000
ROLLUP_WIDTH_S = 900


class Width(StrEnum):
    """How long a bucket is; `none`: the whole range is one."""

    MINUTE = "1m"
    QUARTER = "15m"
    HOUR = "1h"
    DAY = "1d"
    NONE = "none"


_STEPS = {
    Width.MINUTE: timedelta(minutes=1),
    Width.QUARTER: timedelta(minutes=15),
    Width.HOUR: timedelta(hours=1),
}


def edges(start: datetime, end: datetime, *, width: Width, zone: ZoneInfo) -> list[datetime]:
    """The instants (UTC) that cut [start, end): first `start`, last `end`, strictly rising.

    Raises ValueError if the range is empty or would be cut into more than `MOST_BUCKETS`.
    """
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start >= end:
        raise ValueError("a range ends after it starts")
    cut = [start]
    for boundary in _boundaries(start, width=width, zone=zone):
        if boundary >= end:
            break
        if boundary > start:
            cut.append(boundary)
        if len(cut) > MOST_BUCKETS:
            raise ValueError(f"more than {MOST_BUCKETS} buckets: take a wider bucket or a shorter range")
    return [*cut, end]


def ceiling(moment: datetime, *, width: Width, zone: ZoneInfo) -> datetime:
    """The first boundary of this width at or after a moment."""
    moment = moment.astimezone(UTC)
    return next((at for at in _boundaries(moment, width=width, zone=zone) if at >= moment), moment)


def is_whole(cut: list[datetime]) -> bool:
    """True if every edge lies on a quarter of an hour, so that roll-ups add up to the buckets."""
    return all(at.microsecond == 0 and int(at.timestamp()) % ROLLUP_WIDTH_S == 0 for at in cut)


def spans(cut: list[datetime]) -> list[tuple[datetime, datetime]]:
    """The buckets between the edges."""
    return list(pairwise(cut))


def _boundaries(start: datetime, *, width: Width, zone: ZoneInfo) -> Iterator[datetime]:
    day = start.astimezone(zone).date()
    midnight = datetime.combine(day, time(), zone).astimezone(UTC)
    if width is Width.NONE:
        return
    if width is Width.DAY:
        while True:
            yield datetime.combine(day, time(), zone).astimezone(UTC)
            day += timedelta(days=1)
    step = _STEPS[width]
    boundary = midnight + max(0, (start - midnight) // step) * step
    while True:
        yield boundary
        boundary += step
