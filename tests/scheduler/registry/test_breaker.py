from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.registry.breaker import Breaker, BreakerLimits, BreakerState, Failure

LIMITS = BreakerLimits(threshold=3, open_s=5.0, max_open_s=12.0)


def opened(failure: Failure = Failure.BROKEN) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(3):
        breaker.failed(failure, now=0.0, trial=False)
    return breaker


@pytest.mark.parametrize("failure", list(Failure))
def test_failures_in_a_row_open_it(failure: Failure) -> None:
    breaker = Breaker(LIMITS)
    for expected in (BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.OPEN):
        breaker.failed(failure, now=0.0, trial=False)
        assert breaker.state(0.0) is expected
    assert breaker.opens_in_s(1.0) == 4.0


def test_a_success_between_starts_the_count_anew() -> None:
    breaker = Breaker(LIMITS)
    for _ in range(10):
        breaker.failed(Failure.BROKEN, now=0.0, trial=False)
        breaker.failed(Failure.BROKEN, now=0.0, trial=False)
        breaker.succeeded()
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_after_a_while_it_is_half_open_with_one_trial() -> None:
    breaker = opened()
    assert breaker.state(4.9) is BreakerState.OPEN
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    breaker.begin_trial()
    assert not breaker.trial_free()
    breaker.end_trial()
    assert breaker.trial_free()
    assert breaker.state(5.0) is BreakerState.HALF_OPEN


def test_a_failed_trial_opens_it_for_twice_as_long_up_to_a_bound() -> None:
    breaker = opened()
    now = 0.0
    for waits in (5.0, 10.0, 12.0, 12.0):
        assert breaker.opens_in_s(now) == waits
        now += waits
        breaker.begin_trial()
        breaker.failed(Failure.BROKEN, now=now, trial=True)
        breaker.end_trial()
    assert breaker.opened == 5


def test_a_passed_trial_closes_it_on_probation() -> None:
    breaker = opened()
    breaker.begin_trial()
    breaker.trial_passed()
    assert breaker.state(5.0) is BreakerState.CLOSED
    breaker.failed(Failure.BROKEN, now=5.0, trial=False)
    assert breaker.state(5.0) is BreakerState.OPEN


def test_a_whole_answer_ends_probation() -> None:
    breaker = opened()
    breaker.begin_trial()
    breaker.trial_passed()
    breaker.succeeded()
    breaker.failed(Failure.BROKEN, now=5.0, trial=False)
    assert breaker.state(5.0) is BreakerState.CLOSED


@given(st.lists(st.sampled_from(["failed", "succeeded"])))
def test_late_news_of_earlier_requests_changes_nothing_while_open(news: list[str]) -> None:
    breaker = opened()
    for each in news:
        if each == "failed":
            breaker.failed(Failure.BROKEN, now=4.0, trial=False)
        else:
            breaker.succeeded()
    assert breaker.opens_in_s(4.0) == 1.0
    assert breaker.opened == 1


def test_a_passing_probe_hastens_the_trial_only_of_what_was_unreachable() -> None:
    hung, gone = opened(Failure.FIRST_TOKEN_TIMEOUT), opened(Failure.UNREACHABLE)
    hung.reached(1.0)
    gone.reached(1.0)
    assert hung.state(1.0) is BreakerState.OPEN
    assert gone.state(1.0) is BreakerState.HALF_OPEN
