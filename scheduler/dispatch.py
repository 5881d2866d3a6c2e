"""Sends a request to the best backend, and to another one if that fails before its first byte.

    choose → reserve → send ──first body byte──▶ committed: bytes pass through to the end
       ▲                 │
       └─ fails earlier ─┘  connect, first token, broken stream, 5xx, 429; while attempts and backends last

No task per request: everything happens in the transport's callbacks. There is no queue: when all
backends are full the caller is told so at once, and waiting is another room's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.core.clock import Clock
from app.core.errors import EngineError
from scheduler.attempt import RunningAttempt
from scheduler.metrics import SchedulerMetrics
from scheduler.model import Attempt, AttemptOutcome, Demand, outcome_of_error
from scheduler.policies.least_predicted_wait import choose
from scheduler.policies.model import Choice, NoCandidate
from scheduler.ports import DispatchSink, EngineClient
from scheduler.refusal import rejected
from scheduler.registry.model import BackendSpec
from scheduler.registry.service import Registry
from scheduler.transport.model import Deadlines, EngineRequest

MAX_HELD_BYTES = 64 * 1024
"""Most of a refusal's body that is held back while another backend may still answer."""

Call = Callable[[BackendSpec], EngineRequest]
"""Makes an attempt's request for the backend chosen. Pure; what it accepted once it accepts again."""

_ELSEWHERE = frozenset((AttemptOutcome.OVERLOADED, AttemptOutcome.FAULTED))
_GOOD = frozenset((AttemptOutcome.RUNNING, AttemptOutcome.DELIVERED))


@dataclass(frozen=True, slots=True)
class _Ports:
    """What every dispatch of a dispatcher needs."""

    registry: Registry
    client: EngineClient
    clock: Clock
    draw: Callable[[], float]
    max_attempts: int
    idle_retry_after_s: float
    metrics: SchedulerMetrics


class Dispatcher:
    """The scheduler's front door. One per process, on its event loop."""

    def __init__(
        self,
        registry: Registry,
        client: EngineClient,
        *,
        clock: Clock,
        draw: Callable[[], float],
        max_attempts: int = 3,
        idle_retry_after_s: float = 2.0,
    ) -> None:
        """draw: uniform in [0, 1), breaks ties.   idle_retry_after_s: advice while no backend is usable."""
        self.metrics = SchedulerMetrics()
        self._ports = _Ports(registry, client, clock, draw, max_attempts, idle_retry_after_s, self.metrics)

    def dispatch(self, demand: Demand, call: Call, *, deadlines: Deadlines, sink: DispatchSink) -> Dispatch:
        """Start a request; its answer or error goes to `sink`, never before this returned.

        deadlines: of each attempt. `first_byte_s` waits for the first *body* byte, so for an answer
        that isn't streamed it must allow for the whole generation.
        Errors at the sink: Rejected (none usable: 503; all full: 429), or the last attempt's EngineError.
        Raises ValueError if the first request can't be built or written safely; then nothing is held.
        """
        self.metrics.dispatches += 1
        dispatch = Dispatch(self._ports, demand, call=call, deadlines=deadlines, sink=sink)
        dispatch.start()
        return dispatch


class Dispatch:
    """One request on its way. The transport's sink for its attempts, of which one at most is running."""

    def __init__(
        self, ports: _Ports, demand: Demand, *, call: Call, deadlines: Deadlines, sink: DispatchSink
    ) -> None:
        self._ports = ports
        self._demand = demand
        self._call = call
        self._deadlines = deadlines
        self._sink = sink
        self._work = ports.registry.expected_work(demand)
        self._running: RunningAttempt
        self._committed = False
        self._over = False
        self._paused = False
        self._slowed = False
        self._learnt = False
        self._broke_inside = False
        self.attempts: list[Attempt] = []

    # What the relay calls.

    def cancel(self) -> None:
        """Abort it at the engine and give its place back; the sink hears nothing more. Idempotent."""
        if self._over:
            return
        self._over = True
        if self.attempts:
            self._running.settle(AttemptOutcome.BROKEN if self._broke_inside else AttemptOutcome.CANCELLED)
            self._running.exchange.cancel()

    def pause(self) -> None:
        """Stop reading from the engine, because the listener is slow."""
        self._paused = self._slowed = True
        if self.attempts and not self._over:
            self._running.exchange.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self.attempts and not self._over:
            self._running.exchange.resume()

    def finished(self, prompt_tokens: int, output_tokens: int) -> None:
        """Tell what a delivered answer really used, so that speed and sizes are learned from it.

        Counts once. Ignored for refusals, for answers cut short, where the listener was the slow one, and
        without any output: what nobody counted is unknown.
        """
        if self._learnt or self._slowed or not self._committed or output_tokens <= 0:
            return
        running = self._running
        if running.status >= 400 or running.record.outcome not in _GOOD:
            return
        self._learnt = True
        self._ports.registry.learn(
            running.reservation.backend,
            self._demand,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            duration_ms=running.record.duration_ms or running.elapsed_ms(),
        )

    def broke_inside(self) -> None:
        """Tell, before its end, that the answer holds an engine's error in spite of its status 200.

        vLLM ends a stream so when its core dies. It counts against the backend as a broken stream.
        """
        self._broke_inside = True

    # What the transport calls.

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._running.head(status, headers)

    def piece(self, data: bytes) -> None:
        if self._committed:
            self._sink.piece(data)
            return
        running = self._running
        running.hold(data)
        if running.outcome() not in _ELSEWHERE or running.held_bytes > MAX_HELD_BYTES:
            self._commit()

    def end(self) -> None:
        running = self._running
        outcome = AttemptOutcome.BROKEN if self._broke_inside else running.outcome()
        running.settle(outcome)
        if not self._committed:
            if outcome in _ELSEWHERE and self._start_elsewhere(outcome):
                return
            self._commit()
        if not self._over:
            self._over = True
            self._sink.end()

    def error(self, error: EngineError) -> None:
        outcome = outcome_of_error(error)
        self._running.record.error_code = error.code
        self._running.settle(outcome)
        if not self._committed and self._start_elsewhere(outcome):
            return
        self._over = True
        self._sink.error(error)

    # What happens inside.

    def start(self) -> None:
        """Begin the first attempt; without any, the refusal is delivered in the next turn of the loop."""
        picked = self._pick()
        if isinstance(picked, NoCandidate):
            asyncio.get_running_loop().call_soon(self._reject, picked)
        else:
            self._send(picked)

    def _pick(self) -> Choice | NoCandidate:
        tried = tuple(attempt.backend_id for attempt in self.attempts)
        candidates = self._ports.registry.candidates(self._demand.deployment_id, tried=tried)
        return choose(candidates, self._work, draw=self._ports.draw())

    def _send(self, choice: Choice) -> None:
        ports = self._ports
        backend = ports.registry.get(choice.backend_id)
        # A place is taken last: if the request can't be built or sent (ValueError), nothing leaks.
        request = self._call(backend.spec)
        exchange = ports.client.send(backend.target, request, deadlines=self._deadlines, sink=self)
        self._running = RunningAttempt(
            record=Attempt(
                choice.backend_id, ports.clock.now_ms(), choice.predicted_wait_ms, scores=choice.scores
            ),
            reservation=ports.registry.reserve(choice.backend_id, self._work),
            exchange=exchange,
            registry=ports.registry,
            metrics=ports.metrics,
            clock=ports.clock,
            started_s=ports.clock.monotonic(),
        )
        self.attempts.append(self._running.record)
        if self._paused:
            exchange.pause()

    def _start_elsewhere(self, cause: AttemptOutcome) -> bool:
        """Begin the next attempt at a backend not yet tried; False if there is none to begin."""
        if len(self.attempts) >= self._ports.max_attempts:
            return False
        picked = self._pick()
        if isinstance(picked, NoCandidate):
            return False
        self._ports.metrics.retries[cause] += 1
        self._send(picked)
        return True

    def _commit(self) -> None:
        """Hand head and held bytes to the listener: from here on nothing is retried."""
        self._committed = True
        running = self._running
        running.answered()
        held, running.held = running.held, []
        self._sink.head(running.status, running.headers, backend=running.reservation.backend.spec)
        for data in held:
            if self._over:  # The listener left while it was told.
                return
            self._sink.piece(data)

    def _reject(self, none: NoCandidate) -> None:
        if self._over:
            return
        self._over = True
        ports = self._ports
        reopens_s = ports.registry.retry_after_s(self._demand.deployment_id, default=ports.idle_retry_after_s)
        refusal = rejected(none, reopens_s=reopens_s)
        ports.metrics.rejections[refusal.reason] += 1
        self._sink.error(refusal)
