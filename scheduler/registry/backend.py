"""The live state of one backend, and the reservations that count as its load."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.policies.model import Candidate, Standing
from scheduler.registry.breaker import Breaker, BreakerLimits, BreakerState, Failure
from scheduler.registry.model import BackendSnapshot, BackendSpec, Health, ProbeResult, ProbeStatus
from scheduler.registry.speed import Speed
from scheduler.transport.model import Target


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """When news of a backend becomes a judgement.

    probe_fresh_s: a probe older than that says nothing.   probe_fall: failed probes in a row that
    mean dead.   overload_s: how long a 503 is remembered.   last_resort_share: the part of its
    capacity that an ejected backend keeps when there is nothing better.
    """

    probe_fresh_s: float = 10.0
    probe_fall: int = 2
    overload_s: float = 1.0
    last_resort_share: float = 0.25
    breaker: BreakerLimits = field(default_factory=BreakerLimits)


class Backend:
    """One backend as this process sees it. `now` is always a monotonic time in seconds."""

    __slots__ = (
        "_limits",
        "_overloaded_until",
        "_probe_at",
        "_probe_failures",
        "_probe_result",
        "_seen",
        "_seen_until",
        "breaker",
        "in_flight",
        "pending_work",
        "spec",
        "speed",
        "target",
    )

    def __init__(self, spec: BackendSpec, target: Target, *, limits: HealthLimits) -> None:
        self.spec = spec
        self.target = target
        self.in_flight = 0
        self.pending_work = 0.0
        self.speed = Speed()
        self.breaker = Breaker(limits.breaker)
        self._limits = limits
        self._probe_at: float | None = None
        self._probe_result: ProbeResult | None = None
        self._probe_failures = 0
        self._overloaded_until = 0.0
        self._seen: Candidate
        self._seen_until = 0.0

    def record_probe(self, result: ProbeResult, now: float) -> None:
        self.changed()
        self._probe_at = now
        self._probe_result = result
        if result.status is ProbeStatus.PASSED:
            self._probe_failures = 0
            self.breaker.reached(now)
        else:
            self._probe_failures += 1

    def record_overload(self, now: float) -> None:
        """It said 503: prefer others for a moment; this is no failure."""
        self.changed()
        self._overloaded_until = now + self._limits.overload_s

    def health(self, now: float) -> Health:
        """The worst thing known of it; unknown is neither good nor bad."""
        if self.spec.draining:
            return Health.DRAINING
        fresh = self._probe_at is not None and now - self._probe_at <= self._limits.probe_fresh_s
        if fresh and self._probe_failures >= self._limits.probe_fall:
            return Health.DEAD
        state = self.breaker.state(now)
        if state is BreakerState.OPEN:
            return Health.EJECTED
        if state is BreakerState.HALF_OPEN:
            return Health.TRIAL
        if now < self._overloaded_until:
            return Health.OVERLOADED
        return Health.READY if fresh and not self._probe_failures else Health.UNKNOWN

    def candidate(self, now: float) -> Candidate:
        """Itself as the policy sees it now; a lone ejected one is the registry's to raise."""
        # With many backends nearly all are as the last request found them.
        if now < self._seen_until:
            return self._seen
        health, spec = self.health(now), self.spec
        standing, capacity = _STANDINGS[health], spec.max_concurrent
        if health is Health.TRIAL:
            capacity = self.in_flight + 1
            if not self.breaker.trial_free():
                standing = Standing.OUT
        speed = self.speed.ms_per_work(now)
        self._seen = Candidate(
            spec.backend_id, standing, self.in_flight, capacity, self.pending_work, speed, spec.weight
        )
        if health is Health.READY and self._probe_at is not None:
            self._seen_until = min(self._probe_at + self._limits.probe_fresh_s, self.speed.known_until())
        return self._seen

    def changed(self) -> None:
        """Something changed that its candidate shows."""
        self._seen_until = 0.0

    def replace_spec(self, spec: BackendSpec) -> None:
        """Take on new limits for the same process."""
        self.spec = spec
        self.changed()

    def last_resort(self, now: float) -> Candidate:
        """Its candidate, let in at reduced capacity because nothing better stands."""
        capacity = max(1, int(self.spec.max_concurrent * self._limits.last_resort_share))
        return self.candidate(now)._replace(standing=Standing.LAST_RESORT, capacity=capacity)

    def reserve(self, work: float, now: float) -> Reservation:
        """Count a request as load from now on, until its reservation is released."""
        self.changed()
        trial = self.breaker.state(now) is BreakerState.HALF_OPEN and self.breaker.trial_free()
        if trial:
            self.breaker.begin_trial()
        self.in_flight += 1
        self.pending_work += work
        return Reservation(self, work, trial=trial)

    def snapshot(self, now: float) -> BackendSnapshot:
        result = self._probe_result
        return BackendSnapshot(
            backend_id=self.spec.backend_id,
            deployment_id=self.spec.deployment_id,
            engine=self.spec.engine,
            health=self.health(now),
            in_flight=self.in_flight,
            max_concurrent=self.spec.max_concurrent,
            pending_work=self.pending_work,
            ms_per_work=self.speed.ms_per_work(now),
            consecutive_failures=self.breaker.failures,
            times_ejected=self.breaker.opened,
            last_probe=None if result is None else result.status,
            last_probe_detail="" if result is None else result.detail,
            last_probe_age_s=None if self._probe_at is None else now - self._probe_at,
        )


_STANDINGS = {
    Health.READY: Standing.READY,
    Health.TRIAL: Standing.READY,
    Health.UNKNOWN: Standing.UNPROVEN,
    Health.OVERLOADED: Standing.UNPROVEN,
    Health.EJECTED: Standing.OUT,
    Health.DEAD: Standing.OUT,
    Health.DRAINING: Standing.OUT,
}


class Reservation:
    """One request's place at one backend: counted from selection, given back exactly once."""

    __slots__ = ("_released", "_trial", "_work", "backend")

    def __init__(self, backend: Backend, work: float, *, trial: bool) -> None:
        self.backend = backend
        self._work = work
        self._trial = trial
        self._released = False

    def release(self) -> None:
        """Give the place back. Idempotent."""
        if self._released:
            return
        self._released = True
        backend = self.backend
        backend.changed()
        backend.in_flight -= 1
        assert backend.in_flight >= 0, "a reservation is released once"
        # Floats don't cancel exactly: an idle backend has no work pending, to the bit.
        backend.pending_work = max(backend.pending_work - self._work, 0.0) if backend.in_flight else 0.0
        if self._trial:
            backend.breaker.end_trial()

    def answered(self) -> None:
        """A good answer's first byte came."""
        if self._trial:
            self._trial = False
            self.backend.breaker.trial_passed()

    def succeeded(self) -> None:
        """A good answer came to its end."""
        self.backend.breaker.succeeded()

    def failed(self, failure: Failure, now: float) -> None:
        """The backend failed this request."""
        self.backend.breaker.failed(failure, now=now, trial=self._trial)
        self.backend.changed()
