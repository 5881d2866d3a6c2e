"""settle: the one end of an admitted request. Weighs, bills by the table, journals, frees the hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from app.core.clock import Clock
from app.core.ids import AllowanceId, BackendId
from app.gateway.access_log import AccessLog
from app.gateway.dialect import Dialect
from app.gateway.metrics import GatewayMetrics
from app.gateway.model import Admission
from app.gateway.ports import Journal, Leases
from app.gateway.tokenizer import Counted, TokenCounter, Uncounted
from billing.journal.model import Settled, Used
from billing.metering.convert import Report
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.metering.uses import used_of
from billing.metering.weigh import UNTOUCHED, Weighed, weigh, weigh_counted
from billing.rating.model import cost
from scheduler.model import Attempt, AttemptOutcome

log = logging.getLogger(__name__)

_WORKED = frozenset((Outcome.COMPLETED, Outcome.CLIENT_CANCELLED, Outcome.TIMED_OUT))
OnDurable = Callable[[Settled | None], None]
"""Called with the record that is on the disk, or None if it could not get there."""


class Ending(msgspec.Struct, frozen=True):
    """How a request ended, as the relay saw it.

    complete: the answer came to its end.   untouched: no engine worked on it.   uncounted: what a
    tokenizer may count if the report says nothing.   bytes_relayed: of the answer, to the client.
    """

    outcome: Outcome
    status: int
    report: Report | None = None
    complete: bool = False
    untouched: bool = False
    dialect: Dialect = Dialect()
    backend_id: BackendId | None = None
    error_code: str | None = None
    finish_reason: str | None = None
    ttft_ms: int | None = None
    bytes_relayed: int = 0
    uncounted: Uncounted | None = None


class SettleDesk:
    """Opens the settlement of each admitted request. One per process."""

    def __init__(
        self,
        *,
        journal: Journal,
        leases: Leases,
        clock: Clock,
        counter: TokenCounter,
        metrics: GatewayMetrics,
        access_log: AccessLog,
    ) -> None:
        self.journal = journal
        self.leases = leases
        self.clock = clock
        self.counter = counter
        self.metrics = metrics
        self.access_log = access_log
        self._counting: set[asyncio.Task[None]] = set()

    def open(self, admission: Admission) -> Settlement:
        """The settlement of a request that was just admitted."""
        self.metrics.in_flight += 1
        return Settlement(self, admission)

    def count_then(self, settlement: Settlement, ending: Ending, *, uncounted: Uncounted) -> None:
        """Count by a tokenizer, beside the request and however that fares, and settle with the result."""

        async def count() -> None:
            weighed = settlement.weighed(ending)
            try:
                counted = await self.counter.count(settlement.admission, uncounted)
                if counted is not None:
                    weighed = settlement.counted(counted)
            finally:
                settlement.record(ending, weighed)

        task = asyncio.get_running_loop().create_task(count(), name="count-tokens")
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)

    async def close(self) -> None:
        """Wait for the counts that still run; each is bounded in time."""
        await asyncio.gather(*self._counting, return_exceptions=True)


class Settlement:
    """Exactly one `Settled` for one `Admitted`, whatever happens. A second call changes nothing."""

    __slots__ = ("_attempts", "_desk", "_on_durable", "_started", "admission", "settled")

    def __init__(self, desk: SettleDesk, admission: Admission) -> None:
        self._desk = desk
        self._started = desk.clock.monotonic()
        self._on_durable: OnDurable | None = None
        self._attempts: Sequence[Attempt] = ()
        self.admission = admission
        self.settled = False

    @property
    def bound(self) -> Usage:
        """The most that the request can consume."""
        record = self.admission.record
        return Usage(input=record.input_bound, output=record.output_bound)

    def elapsed_ms(self) -> int:
        return round((self._desk.clock.monotonic() - self._started) * 1000)

    def settle(self, ending: Ending, *, attempts: Sequence[Attempt], on_durable: OnDurable) -> None:
        """End the request. `on_durable` is called once, later."""
        if self.settled:
            self._desk.metrics.invariant("settled_twice")
            return
        self.settled = True
        self._attempts = attempts
        self._on_durable = on_durable
        weighed = self.weighed(ending)
        if weighed.source is UsageSource.UNKNOWN and ending.uncounted is not None:
            self._desk.count_then(self, ending, uncounted=ending.uncounted)
        else:
            self.record(ending, weighed)

    def weighed(self, ending: Ending) -> Weighed:
        """The usage that the engine's report proves."""
        if ending.untouched:
            return UNTOUCHED
        return weigh(
            ending.report,
            convention=ending.dialect.convention,
            complete=ending.complete,
            bound=self.bound,
        )

    def consume(self, usage: Usage) -> None:
        """Tell the rates what the request has consumed by now."""
        desk, hold = self._desk, self.admission.hold
        for each in self.admission.rates if not self.settled else ():
            desk.leases.consume(hold, each.allowance_id, total=used_of(each.what, usage, cost_picos=0))

    def _rates_taken(self, ending: Ending, weighed: Weighed) -> dict[AllowanceId, int]:
        """What a request took of its rates, whether billed or not: they protect what engines can do.

        What nobody counted of an answer is taken to be all that it could be; what our side broke, as much
        as was heard of it.
        """
        usage = weighed.usage
        if weighed.unknown_bound is not None and ending.outcome in _WORKED:
            usage = weighed.unknown_bound
        return {each.allowance_id: used_of(each.what, usage, cost_picos=0) for each in self.admission.rates}

    def can_count(self, dialect: Dialect, *, engine_lives: bool) -> bool:
        """True if a tokenizer could count what the engine does not report."""
        return self._desk.counter.can_count(self.admission, dialect, engine_lives=engine_lives)

    def counted(self, counted: Counted) -> Weighed:
        """The usage that a tokenizer counted."""
        weighed = weigh_counted(
            input_tokens=counted.input,
            output_tokens=counted.output,
            cached=counted.cached,
            bound=self.bound,
        )
        return weighed._replace(flags=weighed.flags + counted.flags)

    def record(self, ending: Ending, weighed: Weighed) -> None:
        """Free the hold and write the record."""
        desk, admission = self._desk, self.admission
        charged = billed(ending.outcome, weighed.source, weighed.usage, bound=self.bound)
        cost_picos = cost(charged, admission.record.rates)
        used = tuple(
            [
                Used(
                    held.allowance_id,
                    held.amount,
                    used_of(held.what, charged, cost_picos=cost_picos),
                    held.what,
                )
                for held in admission.record.holds
            ]
        )
        taken = {each.allowance_id: each.used for each in used}
        if admission.rates:
            taken |= self._rates_taken(ending, weighed)
        release = desk.leases.settle(admission.hold, taken)
        now_ms = desk.clock.now_ms()
        settled = Settled(
            request_id=admission.request_id,
            at_ms=now_ms,
            outcome=ending.outcome,
            usage_source=weighed.source,
            usage=weighed.usage,
            billed=charged,
            unknown_bound=weighed.unknown_bound,
            cost_picos=cost_picos,
            used=used,
            backend_id=ending.backend_id,
            status=ending.status,
            error_code=ending.error_code,
            finish_reason=ending.finish_reason,
            ttft_ms=ending.ttft_ms,
            duration_ms=self.elapsed_ms(),
            bytes_relayed=ending.bytes_relayed,
            flags=weighed.flags,
            attempts=tuple(_plain(attempt, now_ms=now_ms) for attempt in self._attempts),
        )

        def durable(is_durable: bool) -> None:  # noqa: FBT001 - the journal's callback
            if is_durable:
                release.durable()
            else:
                desk.metrics.settlements_not_durable += 1
            assert self._on_durable is not None
            on_durable, self._on_durable = self._on_durable, None  # a cycle with the relay ends here
            on_durable(settled if is_durable else None)

        desk.journal.settle(settled, durable)
        desk.metrics.settled(admission, settled)
        desk.access_log.settled(admission, settled)


def _plain(attempt: Attempt, *, now_ms: int) -> dict[str, Any]:
    """An attempt as plain values; one that is still open as the request ends was answered to its end."""
    outcome, is_open = attempt.outcome, attempt.duration_ms is None
    return {
        "backend_id": attempt.backend_id,
        "started_ms": attempt.started_ms,
        "predicted_wait_ms": attempt.predicted_wait_ms,
        "scores": dict(attempt.scores),
        "outcome": AttemptOutcome.DELIVERED if outcome is AttemptOutcome.RUNNING else outcome,
        "status": attempt.status,
        "error_code": attempt.error_code,
        "first_byte_ms": attempt.first_byte_ms,
        "duration_ms": max(0, now_ms - attempt.started_ms) if is_open else attempt.duration_ms,
    }
