"""Order, its reverse, and the patience with fallen services."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stack.plan import Backoff, Plan, PlanError

STACK = Plan({"postgres": [], "migrate": ["postgres"], "valkey": [], "worker": ["migrate", "valkey"]})


def test_everything_comes_after_what_it_waits_for() -> None:
    assert STACK.order() == ["postgres", "migrate", "valkey", "worker"]


def test_nothing_stops_before_those_that_rely_on_it() -> None:
    assert STACK.dependents("postgres") == ["migrate"]
    assert STACK.dependents("worker") == []


def test_a_plan_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(PlanError, match="itself"):
        Plan({"hen": ["egg"], "egg": ["hen"]})


def test_a_plan_that_waits_for_a_stranger_is_refused() -> None:
    with pytest.raises(PlanError, match="stranger"):
        Plan({"gateway": ["stranger"]})


@given(st.data())
def test_any_plan_without_a_circle_has_an_order(data: st.DataObject) -> None:
    names = [f"s{n}" for n in range(data.draw(st.integers(0, 12)))]
    after = {
        name: data.draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        for place, name in enumerate(names)
    }
    shuffled = {name: after[name] for name in data.draw(st.permutations(names))}
    order = Plan(shuffled).order()
    assert sorted(order) == sorted(names)
    assert all(order.index(other) < order.index(name) for name in names for other in after[name])


def test_the_wait_doubles_up_to_a_bound() -> None:
    backoff = Backoff(first_s=0.2, most_s=10)
    assert [backoff.delay_s(falls) for falls in range(1, 9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert backoff.delay_s(10_000) == 10


def test_a_long_healthy_run_forgives_earlier_falls() -> None:
    backoff = Backoff(forgiven_after_s=30)
    assert backoff.falls(5, ran_s=29.9) == 6
    assert backoff.falls(5, ran_s=30) == 1
