from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.clock import ManualClock
from app.core.ids import BackendId, DeploymentId
from scheduler.policies.model import Standing
from scheduler.registry.backend import HealthLimits, Reservation
from scheduler.registry.breaker import Failure
from scheduler.registry.model import Health, ProbeResult, ProbeStatus
from scheduler.registry.service import Registry
from tests.scheduler.fakes import DEPLOYMENT, PASSED, Fleet, demand, spec

REFUSED = ProbeResult(ProbeStatus.REFUSED, "status 503")
A, B = BackendId("a"), BackendId("b")


def health(fleet: Fleet, name: str = "a") -> Health:
    return next(b.health for b in fleet.registry.snapshot() if b.backend_id == name)


def standings(fleet: Fleet) -> dict[str, Standing]:
    return {c.backend_id: c.standing for c in fleet.registry.candidates(DEPLOYMENT)}


def fail(fleet: Fleet, name: str, *, times: int = 3, failure: Failure = Failure.BROKEN) -> None:
    for _ in range(times):
        reservation = fleet.registry.reserve(BackendId(name), 1.0)
        fleet.registry.record_failure(reservation, failure)
        reservation.release()


def test_ready_is_a_recent_passed_probe_and_an_old_one_is_unknown() -> None:
    fleet = Fleet(spec("a"))
    assert health(fleet) is Health.READY
    fleet.clock.advance(11)
    assert health(fleet) is Health.UNKNOWN
    assert standings(fleet) == {"a": Standing.UNPROVEN}


def test_a_backend_never_probed_is_unknown_and_can_still_be_used() -> None:
    fleet = Fleet()
    fleet.registry.apply([spec("a")])
    assert standings(fleet) == {"a": Standing.UNPROVEN}


def test_one_failed_probe_is_doubt_and_two_are_death_until_one_passes() -> None:
    fleet = Fleet(spec("a"))
    seen = []
    for result in (REFUSED, REFUSED, PASSED):
        fleet.probe_all(result)
        seen.append(health(fleet))
    assert seen == [Health.UNKNOWN, Health.DEAD, Health.READY]


def test_the_dead_are_never_offered_even_when_nothing_else_is_left() -> None:
    fleet = Fleet(spec("a"))
    fleet.probe_all(REFUSED)
    fleet.probe_all(REFUSED)
    assert standings(fleet) == {"a": Standing.OUT}


def test_an_ejected_backend_is_out_while_another_stands() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    fail(fleet, "a", failure=Failure.FIRST_TOKEN_TIMEOUT)
    fleet.probe_all()
    assert health(fleet) is Health.EJECTED, "a passing probe doesn't heal what hangs"
    assert standings(fleet) == {"a": Standing.OUT, "b": Standing.READY}


def test_the_last_backend_is_narrowed_rather_than_ejected() -> None:
    fleet = Fleet(spec("a"))
    fail(fleet, "a")
    (only,) = fleet.registry.candidates(DEPLOYMENT)
    assert (only.standing, only.capacity) == (Standing.LAST_RESORT, 2)


def test_a_tried_backend_that_stands_keeps_the_ejected_out() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    fail(fleet, "a")
    (left,) = fleet.registry.candidates(DEPLOYMENT, tried=[B])
    assert (left.backend_id, left.standing) == ("a", Standing.OUT)


def test_a_half_open_backend_takes_one_trial_whatever_runs_there() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    old = [fleet.registry.reserve(A, 1.0) for _ in range(3)]
    fail(fleet, "a")
    fleet.clock.advance(5)
    (trial, _) = fleet.registry.candidates(DEPLOYMENT)
    assert (trial.standing, trial.capacity - trial.in_flight) == (Standing.READY, 1)
    reservation = fleet.registry.reserve(A, 1.0)
    assert standings(fleet)["a"] is Standing.OUT
    reservation.release()
    assert standings(fleet)["a"] is Standing.READY, "a trial without a verdict leaves room for another"
    for each in old:
        each.release()


def test_a_trial_that_answers_brings_the_backend_back() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    fail(fleet, "a")
    fleet.clock.advance(5)
    reservation = fleet.registry.reserve(A, 1.0)
    reservation.answered()
    assert health(fleet) is Health.READY
    reservation.succeeded()
    reservation.release()
    fail(fleet, "a", times=2)
    assert health(fleet) is Health.READY


def test_an_overloaded_backend_is_second_choice_for_a_moment() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    reservation = fleet.registry.reserve(A, 1.0)
    for _ in range(10):
        fleet.registry.record_overload(reservation)
    assert standings(fleet) == {"a": Standing.UNPROVEN, "b": Standing.READY}
    fleet.clock.advance(1.1)
    assert health(fleet) is Health.READY
    reservation.release()


def test_applying_the_same_fleet_again_changes_nothing() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    fail(fleet, "a", times=2)
    fleet.registry.learn(fleet.registry.get(B), demand(), prompt_tokens=1, output_tokens=10, duration_ms=100)
    before = fleet.registry.snapshot()
    fleet.registry.apply([spec("a"), spec("b")])
    assert fleet.registry.snapshot() == before


def test_new_limits_keep_what_was_learned_and_a_new_address_starts_afresh() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    fail(fleet, "a", times=2)
    fail(fleet, "b", times=2)
    fleet.registry.apply(
        [spec("a", max_concurrent=99, weight=2), spec("b", base_url="http://elsewhere.test:1")]
    )
    a, b = fleet.registry.snapshot()
    assert (a.consecutive_failures, a.max_concurrent, a.health) == (2, 99, Health.READY)
    assert (b.consecutive_failures, b.health) == (0, Health.UNKNOWN)


def test_a_drained_backend_gets_nothing_new_and_a_removed_one_is_counted_to_its_end() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    reservation = fleet.registry.reserve(A, 1.0)
    fleet.registry.apply([spec("a", draining=True), spec("b")])
    assert standings(fleet)["a"] is Standing.OUT
    fleet.registry.apply([spec("b")])
    assert fleet.in_flight() == {"a": 1, "b": 0}
    reservation.release()
    assert fleet.in_flight() == {"b": 0}


def test_a_backend_that_returns_before_its_last_request_ended_still_counts_it() -> None:
    fleet = Fleet(spec("a"))
    reservation = fleet.registry.reserve(A, 1.0)
    fleet.registry.apply([])
    fleet.registry.apply([spec("a")])
    assert (fleet.in_flight(), health(fleet)) == ({"a": 1}, Health.READY)
    reservation.release()
    assert fleet.in_flight() == {"a": 0}


def test_an_invalid_address_leaves_only_that_backend_out() -> None:
    registry = Registry(clock=ManualClock())
    assert registry.apply([spec("a", base_url="ftp://x"), spec("b")]) == ("a",)
    assert [s.backend_id for s in registry.specs()] == ["b"]


def test_news_of_a_process_that_was_replaced_is_ignored() -> None:
    fleet = Fleet(spec("a"))
    old = spec("a")
    fleet.registry.apply([spec("a", base_url="http://new.test:1")])
    fleet.registry.record_probe(old, PASSED)
    assert health(fleet) is Health.UNKNOWN


def test_deployments_do_not_see_each_other() -> None:
    fleet = Fleet(spec("a"), spec("b", deployment_id=DeploymentId("dep_2")))
    assert [c.backend_id for c in fleet.registry.candidates(DEPLOYMENT)] == ["a"]


def test_advice_to_wait_names_the_next_trial() -> None:
    fleet = Fleet(spec("a"))
    assert fleet.registry.retry_after_s(DEPLOYMENT, default=2.0) == 2.0
    fail(fleet, "a")
    fleet.clock.advance(2)
    assert fleet.registry.retry_after_s(DEPLOYMENT, default=2.0) == pytest.approx(3.0)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order: load is what is reserved, and what must not be offered is not."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["a", "b", "c"]
        self.fleet = Fleet(*map(spec, self.names), limits=HealthLimits(probe_fall=1))
        self.held: list[Reservation] = []

    @rule(name=st.sampled_from("abc"), work=st.floats(0, 1e9))
    def reserve(self, name: str, work: float) -> None:
        if name in self.names:
            self.held.append(self.fleet.registry.reserve(BackendId(name), work))

    @rule(which=st.integers(0, 10**6), failure=st.none() | st.sampled_from(Failure), times=st.integers(1, 2))
    def end(self, which: int, failure: Failure | None, times: int) -> None:
        if not self.held:
            return
        reservation = self.held.pop(which % len(self.held))
        if failure is None:
            reservation.answered()
            reservation.succeeded()
        else:
            self.fleet.registry.record_failure(reservation, failure)
        for _ in range(times):
            reservation.release()

    @rule(name=st.sampled_from("abc"), result=st.sampled_from([PASSED, REFUSED]))
    def probe(self, name: str, result: ProbeResult) -> None:
        self.fleet.registry.record_probe(spec(name), result)

    @rule(names=st.sets(st.sampled_from("abc")), draining=st.sets(st.sampled_from("abc")))
    def apply(self, names: set[str], draining: set[str]) -> None:
        self.names = sorted(names)
        self.fleet.registry.apply([spec(n, draining=n in draining) for n in self.names])

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)

    @rule(name=st.sampled_from("abc"), duration_ms=st.floats(1, 1e6))
    def learn(self, name: str, duration_ms: float) -> None:
        if name in self.names:
            backend = self.fleet.registry.get(BackendId(name))
            self.fleet.registry.learn(
                backend, demand(), prompt_tokens=9, output_tokens=9, duration_ms=duration_ms
            )

    @rule(which=st.integers(0, 10**6))
    def overload(self, which: int) -> None:
        if self.held:
            self.fleet.registry.record_overload(self.held[which % len(self.held)])

    @invariant()
    def what_is_remembered_of_a_backend_is_what_it_is(self) -> None:
        remembered = self.fleet.registry.candidates(DEPLOYMENT)
        for name in self.names:
            self.fleet.registry.get(BackendId(name)).changed()
        assert self.fleet.registry.candidates(DEPLOYMENT) == remembered

    @invariant()
    def load_is_what_is_reserved(self) -> None:
        snapshot = self.fleet.registry.snapshot()
        assert sum(b.in_flight for b in snapshot) == len(self.held)
        for backend in snapshot:
            assert backend.pending_work >= 0
            assert backend.in_flight > 0 or backend.pending_work == 0

    @invariant()
    def the_dead_and_draining_are_never_offered(self) -> None:
        health_of = {b.backend_id: b.health for b in self.fleet.registry.snapshot()}
        for candidate in self.fleet.registry.candidates(DEPLOYMENT):
            if health_of[candidate.backend_id] in (Health.DEAD, Health.DRAINING):
                assert candidate.standing is Standing.OUT

    @invariant()
    def a_breaker_never_takes_the_last_backend(self) -> None:
        candidates = self.fleet.registry.candidates(DEPLOYMENT)
        health_of = {s.backend_id: s for s in self.fleet.registry.specs()}
        assert {c.backend_id for c in candidates} == set(health_of)
        alive = [b for b in self.fleet.registry.snapshot() if b.backend_id in health_of]
        if any(b.health not in (Health.DEAD, Health.DRAINING) for b in alive):
            assert any(c.standing is not Standing.OUT for c in candidates)


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
