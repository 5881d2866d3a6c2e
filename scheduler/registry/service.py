"""The backends of all deployments as this process sees them: who is there, who is well, who has room."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from app.core.clock import Clock
from app.core.ids import BackendId, DeploymentId
from scheduler.model import Demand
from scheduler.policies.model import Candidate, Standing
from scheduler.registry.backend import Backend, HealthLimits, Reservation
from scheduler.registry.breaker import Failure
from scheduler.registry.model import BackendSnapshot, BackendSpec, Health, ProbeResult
from scheduler.registry.speed import Sizes, work_of
from scheduler.transport.model import parse_target

_NARROWED = frozenset((Health.EJECTED, Health.TRIAL))
log = logging.getLogger(__name__)


class Registry:
    """Holds the live state of every backend. One per process, on its event loop; not thread-safe."""

    def __init__(self, *, clock: Clock, limits: HealthLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or HealthLimits()
        self._backends: dict[BackendId, Backend] = {}
        self._by_deployment: dict[DeploymentId, tuple[Backend, ...]] = {}
        self._sizes: dict[DeploymentId, Sizes] = {}
        self._leaving: list[Backend] = []

    def apply(self, specs: Iterable[BackendSpec]) -> tuple[BackendId, ...]:
        """Make `specs` the whole fleet; returns the ids left out because their address is invalid.

        Idempotent. A backend whose process is the same keeps its live state, whatever else changed;
        one that is gone gets nothing new, and what it runs is counted until it ends, or until it returns.
        """
        before = (*self._leaving, *self._backends.values())
        known = {b.spec.backend_id: b for b in before}
        self._backends = {}
        invalid: list[BackendId] = []
        for spec in specs:
            try:
                self._backends[spec.backend_id] = self._placed(spec, known.get(spec.backend_id))
            except ValueError:
                log.warning("backend_address_invalid", extra={"backend_id": spec.backend_id})
                invalid.append(spec.backend_id)
        kept = set(map(id, self._backends.values()))
        self._leaving = [b for b in before if b.in_flight and id(b) not in kept]
        for backend in self._leaving:
            backend.replace_spec(replace(backend.spec, draining=True))
        self._index()
        return tuple(invalid)

    def candidates(
        self, deployment_id: DeploymentId, *, tried: Collection[BackendId] = ()
    ) -> list[Candidate]:
        """Every backend of a deployment as the policy sees it now, but those already tried.

        While no backend stands, the ejected ones that aren't known to be dead count as a last resort:
        a breaker never takes the last backend away, it only narrows it.
        """
        now = self._clock.monotonic()
        found: list[Candidate] = []
        ejected: list[Backend] = []
        stands = False
        for backend in self._by_deployment.get(deployment_id, ()):
            candidate = backend.candidate(now)
            is_in = candidate.standing is not Standing.OUT
            stands = stands or is_in
            if tried and candidate.backend_id in tried:
                continue
            if is_in or backend.health(now) not in _NARROWED:
                found.append(candidate)
            else:
                ejected.append(backend)
        found.extend(b.candidate(now) if stands else b.last_resort(now) for b in ejected)
        return found

    def get(self, backend_id: BackendId) -> Backend:
        """The live state of a backend. Raises KeyError if it isn't in the fleet."""
        return self._backends[backend_id]

    def specs(self) -> list[BackendSpec]:
        """The fleet as it was applied, without what was left out."""
        return [b.spec for b in self._backends.values()]

    def reserve(self, backend_id: BackendId, work: float) -> Reservation:
        """Take a place at a backend that was just chosen."""
        return self._backends[backend_id].reserve(work, self._clock.monotonic())

    def record_probe(self, spec: BackendSpec, result: ProbeResult) -> None:
        """Take note of a probe; ignored if that process has left the fleet meanwhile."""
        backend = self._backends.get(spec.backend_id)
        if backend is None or not backend.spec.same_process(spec):
            return
        now = self._clock.monotonic()
        was = backend.health(now)
        backend.record_probe(result, now)
        self._log_change(backend, was)

    def record_failure(self, reservation: Reservation, failure: Failure) -> None:
        """Take note that a backend failed a request for which it had a place."""
        now = self._clock.monotonic()
        was = reservation.backend.health(now)
        reservation.failed(failure, now)
        self._log_change(reservation.backend, was)

    def record_overload(self, reservation: Reservation) -> None:
        """Take note that a backend had no room, whatever we thought."""
        reservation.backend.record_overload(self._clock.monotonic())

    def expected_work(self, demand: Demand) -> float:
        """The work to be expected of a request, from its bounds and from what others turned out to be."""
        sizes = self._sizes.get(demand.deployment_id)
        if sizes is None:
            sizes = self._sizes[demand.deployment_id] = Sizes()
        return sizes.expected_work(
            prompt_tokens_bound=demand.prompt_tokens_bound, max_output_tokens=demand.max_output_tokens
        )

    def learn(
        self, backend: Backend, demand: Demand, *, prompt_tokens: int, output_tokens: int, duration_ms: float
    ) -> None:
        """Learn speed and sizes from a request that came to its end."""
        work = work_of(prompt_tokens, output_tokens)
        backend.changed()
        backend.speed.observe(duration_ms=duration_ms, work=work, now=self._clock.monotonic())
        sizes = self._sizes.get(demand.deployment_id)
        if sizes is not None:
            sizes.observe(
                prompt_tokens=prompt_tokens,
                prompt_tokens_bound=demand.prompt_tokens_bound,
                output_tokens=output_tokens,
            )

    def retry_after_s(self, deployment_id: DeploymentId, *, default: float) -> float:
        """Seconds until a backend of the deployment may be tried again; `default` if nothing is due."""
        now = self._clock.monotonic()
        due = [b.breaker.opens_in_s(now) for b in self._by_deployment.get(deployment_id, ())]
        return min((s for s in due if s > 0), default=default)

    def snapshot(self) -> list[BackendSnapshot]:
        """The live state of every backend, those that still finish their last requests included."""
        now = self._clock.monotonic()
        self._leaving = [b for b in self._leaving if b.in_flight]
        return [b.snapshot(now) for b in (*self._backends.values(), *self._leaving)]

    def _placed(self, spec: BackendSpec, known: Backend | None) -> Backend:
        if known is not None and known.spec.same_process(spec):
            known.replace_spec(spec)
            return known
        return Backend(spec, parse_target(spec.base_url), limits=self._limits)

    def _index(self) -> None:
        by_deployment: dict[DeploymentId, list[Backend]] = {}
        for backend in self._backends.values():
            by_deployment.setdefault(backend.spec.deployment_id, []).append(backend)
        self._by_deployment = {k: tuple(v) for k, v in by_deployment.items()}
        self._sizes = {k: v for k, v in self._sizes.items() if k in by_deployment}

    def _log_change(self, backend: Backend, was: Health) -> None:
        """One log line if a backend's health is no longer what it was."""
        now_is = backend.health(self._clock.monotonic())
        if now_is is not was:
            log.info(
                "backend_health_changed",
                extra={"backend_id": backend.spec.backend_id, "was": was.value, "health": now_is.value},
            )
