"""One timer for all exchanges of a client.

An exchange's deadline moves with each piece of its body; arming a timer each time would cost more than the
piece. So a deadline is only a number on the exchange, and the one timer looks at all of them when the
earliest that it knew of has passed. A deadline is kept to within `GRAIN_S`.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import Protocol

GRAIN_S = 0.02


class Timed(Protocol):
    def due(self) -> float:
        """When it expires, on the monotonic clock."""
        ...

    def expire(self) -> None:
        """Called once `due()` has passed; it must then leave the watch or move its deadline."""
        ...

    def fail(self, reason: str) -> None:
        """End it for another reason than time."""
        ...


class DeadlineWatch:
    """Calls `expire` on whatever is overdue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._watched: set[Timed] = set()
        self.wake_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, timed: Timed) -> None:
        """Watch it until it is discarded. Idempotent."""
        self._watched.add(timed)
        due = timed.due()
        if due < self.wake_at:
            self._arm(due)

    def moved(self, timed: Timed) -> None:
        """Say that a deadline may have become earlier; one that became later needs no word."""
        due = timed.due()
        if due < self.wake_at:
            self._arm(due)

    def discard(self, timed: Timed) -> None:
        self._watched.discard(timed)

    def close(self, reason: str) -> None:
        """Fail whatever is watched, and watch no more."""
        for timed in list(self._watched):
            timed.fail(reason)
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.wake_at = due
        self._timer = self.loop.call_later(max(due - monotonic(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer, self.wake_at = None, inf
        now = monotonic()
        overdue = [timed for timed in self._watched if timed.due() <= now]
        for timed in overdue:
            if timed in self._watched:  # one expiry may have ended another
                timed.expire()
        if self._watched:
            self._arm(max(min(timed.due() for timed in self._watched), now + GRAIN_S))
