"""What a limit would have refused of requests that were served: the past once more, with the limit. Pure.

Every limit that a request draws on is one kind of bucket, in whole numbers: a **rate** fills with time up to
its burst; a **budget** is full again at each period's start; a number of **running requests** gets back
what ends. A request takes the most that it may use when it is admitted and gives back what it did not use
when it ends; one that is refused takes nothing. So a rate admits at most burst + rate · time in any interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

_MINUTE_MS = 60_000


class Demand(NamedTuple):
    """One request: admitted at `at_ms`, ended at `end_ms`; what it needed at first and used in the end."""

    request_id: str
    at_ms: int
    end_ms: int
    needed: int
    used: int


class Bucket:
    """A limit on what requests draw, from full on. Demands come in the order of their admission.

    capacity: the most that is there at once.   per_minute: what comes back with time.   full_at_ms: the
    rising moments at which it is full whatever was used: the starts of periods.
    """

    def __init__(self, capacity: int, *, per_minute: int = 0, full_at_ms: Sequence[int] = ()) -> None:
        # Kept in 60,000ths, so that a millisecond brings a whole number.
        self._capacity = capacity * _MINUTE_MS
        self._per_ms = per_minute
        self._full_at_ms = full_at_ms
        self._level = self._capacity
        self._out = 0
        self._at_ms: int | None = None
        self._period = 0
        self._held: list[tuple[int, int, int, int]] = []

    def admits(self, demand: Demand) -> bool:
        """Whether it is admitted; then it has taken what it needs."""
        self._turn(demand.at_ms)
        needed = demand.needed * _MINUTE_MS
        if needed > max(self._level, 0):
            return False
        self._level -= needed
        self._out += needed
        unused = needed - demand.used * _MINUTE_MS
        heappush(self._held, (max(demand.end_ms, demand.at_ms), self._period, needed, unused))
        return True

    def _turn(self, at_ms: int) -> None:
        """Let time pass: what ended by then has given back, periods that began are full."""
        while self._held and self._held[0][0] <= at_ms:
            end_ms, period, needed, unused = heappop(self._held)
            self._pass(end_ms)
            if period == self._period:
                self._out -= needed
                self._level += unused
        self._pass(at_ms)

    def _pass(self, at_ms: int) -> None:
        period = bisect_right(self._full_at_ms, at_ms)
        if period != self._period:
            self._period, self._level, self._out = period, self._capacity, 0
        if self._at_ms is not None and at_ms > self._at_ms:
            gained = self._level + (at_ms - self._at_ms) * self._per_ms
            self._level = max(self._level, min(gained, self._capacity - self._out))
        self._at_ms = at_ms if self._at_ms is None else max(self._at_ms, at_ms)


class Ceiling:
    """A limit on each request alone."""

    def __init__(self, most: int) -> None:
        self._most = most

    def admits(self, demand: Demand) -> bool:
        return demand.needed <= self._most
