"""The attempt that runs: what it has said so far, its place at the backend, and how its books are closed."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.clock import Clock
from scheduler.metrics import SchedulerMetrics
from scheduler.model import Attempt, AttemptOutcome, outcome_of_status
from scheduler.ports import Exchange
from scheduler.registry.backend import Reservation
from scheduler.registry.breaker import Failure
from scheduler.registry.service import Registry

_FAILURES = {
    AttemptOutcome.FAULTED: Failure.ENGINE_FAULT,
    AttemptOutcome.UNREACHABLE: Failure.UNREACHABLE,
    AttemptOutcome.FIRST_TOKEN_TIMEOUT: Failure.FIRST_TOKEN_TIMEOUT,
    AttemptOutcome.BROKEN: Failure.BROKEN,
}


@dataclass(slots=True, kw_only=True)
class RunningAttempt:
    """One try at one backend, from its reservation to its verdict.

    started_s: monotonic.   held: body bytes that the listener hasn't been given yet.
    """

    record: Attempt
    reservation: Reservation
    exchange: Exchange
    registry: Registry
    metrics: SchedulerMetrics
    clock: Clock
    started_s: float
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    held_bytes: int = 0

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = self.record.status = status
        self.headers = headers

    def hold(self, data: bytes) -> None:
        self.held.append(data)
        self.held_bytes += len(data)

    def outcome(self) -> AttemptOutcome:
        """How it ends if the answer whose head came is whole."""
        return outcome_of_status(self.status)

    def answered(self) -> None:
        """The first byte of its answer goes to the listener."""
        self.record.first_byte_ms = self.elapsed_ms()
        if self.status < 400:
            self.reservation.answered()

    def settle(self, outcome: AttemptOutcome) -> None:
        """Close its books: the verdict on the backend, its place there, its record. Idempotent."""
        record = self.record
        if record.outcome is not AttemptOutcome.RUNNING:
            return
        record.outcome = outcome
        record.duration_ms = self.elapsed_ms()
        failure = _FAILURES.get(outcome)
        if failure is not None:
            self.registry.record_failure(self.reservation, failure)
        elif outcome is AttemptOutcome.OVERLOADED:
            self.registry.record_overload(self.reservation)
        elif outcome is AttemptOutcome.DELIVERED:
            self.reservation.succeeded()
        self.reservation.release()
        self.metrics.attempts[record.backend_id, outcome] += 1

    def elapsed_ms(self) -> float:
        return (self.clock.monotonic() - self.started_s) * 1000
