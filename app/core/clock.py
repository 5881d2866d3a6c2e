"""Time as an argument: whatever needs the time takes a `Clock`, so tests move it by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix time in whole milliseconds (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until `advance` moves it: for tests and simulations."""

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)
        self._elapsed_s += seconds


def from_ms(unix_ms: int) -> datetime:
    """The aware UTC datetime of a Unix time in milliseconds."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
