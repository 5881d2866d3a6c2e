"""Counters of the scheduler as plain numbers; the gateway exports them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from app.core.errors import RejectReason
from app.core.ids import BackendId
from scheduler.model import AttemptOutcome


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Totals since the process started.

    attempts: ended ones, by backend and outcome.   retries: by the outcome that caused them.
    """

    dispatches: int
    attempts: dict[tuple[BackendId, AttemptOutcome], int]
    retries: dict[AttemptOutcome, int]
    rejections: dict[RejectReason, int]


class SchedulerMetrics:
    """What a dispatcher counts as it goes."""

    __slots__ = ("attempts", "dispatches", "rejections", "retries")

    def __init__(self) -> None:
        self.dispatches = 0
        self.attempts: Counter[tuple[BackendId, AttemptOutcome]] = Counter()
        self.retries: Counter[AttemptOutcome] = Counter()
        self.rejections: Counter[RejectReason] = Counter()

    def snapshot(self) -> MetricsSnapshot:
        """The totals now; a copy."""
        return MetricsSnapshot(
            self.dispatches, dict(self.attempts), dict(self.retries), dict(self.rejections)
        )
