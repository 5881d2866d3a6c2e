"""A breaker per backend: what requests themselves taught us about it. Pure; time is an argument.

closed ──N failures in a row──▶ open ──a while──▶ half-open: one trial ──works──▶ closed, on probation
                                  ▲                                │
                                  └────────── fails: twice as long ┘

Only a request's own fate counts. A passing health probe doesn't close it (an engine may answer
`/health` and hang on every request), with one exception: what was unreachable and answers again may
have its trial at once. Refusals (4xx) and overload (503) are neutral; so is a client that left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    UNREACHABLE = "unreachable"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 - a token of text
    BROKEN = "broken"
    ENGINE_FAULT = "engine_fault"
    """A 5xx other than 503."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """threshold: failures in a row that open it.   open_s, max_open_s: first and longest time open."""

    threshold: int = 3
    open_s: float = 5.0
    max_open_s: float = 60.0


class Breaker:
    """Counts failures in a row. `now` is a monotonic time in seconds, never going back."""

    __slots__ = ("_last", "_limits", "_open_s", "_reopens_at", "_trial", "failures", "opened")

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._open_s = limits.open_s
        self._reopens_at: float | None = None
        self._trial = False
        self._last: Failure | None = None
        self.failures = 0
        self.opened = 0

    def state(self, now: float) -> BreakerState:
        if self._reopens_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._reopens_at else BreakerState.HALF_OPEN

    def trial_free(self) -> bool:
        return not self._trial

    def opens_in_s(self, now: float) -> float:
        """Seconds until its next trial may start; 0 if it is closed or half-open."""
        return 0.0 if self._reopens_at is None else max(0.0, self._reopens_at - now)

    def begin_trial(self) -> None:
        assert not self._trial, "a half-open breaker has one trial at a time"
        self._trial = True

    def end_trial(self) -> None:
        """The trial is over without an answer; a failure, if it was one, was counted before."""
        self._trial = False

    def trial_passed(self) -> None:
        """The trial's answer has begun: closed, on probation (the next failure in a row reopens it)."""
        self._trial = False
        self._reopens_at = None
        self.failures = self._limits.threshold - 1

    def succeeded(self) -> None:
        """A good answer came to its end. Late news of an earlier time doesn't close an open breaker."""
        if self._reopens_at is None:
            self.failures = 0
            self._open_s = self._limits.open_s

    def failed(self, failure: Failure, *, now: float, trial: bool) -> None:
        """Count a failure. While it isn't closed, only its trial's failure counts."""
        self._last = failure
        if self._reopens_at is None:
            self.failures += 1
            if self.failures >= self._limits.threshold:
                self._open(now)
        elif trial:
            self.failures += 1
            self._open(now)

    def reached(self, now: float) -> None:
        """A health probe passed: if it was ejected as unreachable, let it have its trial now."""
        if self._last is Failure.UNREACHABLE and self._reopens_at is not None:
            self._reopens_at = min(self._reopens_at, now)

    def _open(self, now: float) -> None:
        self._reopens_at = now + self._open_s
        self._open_s = min(self._open_s * 2, self._limits.max_open_s)
        self.opened += 1
