"""A limit replayed decides as a plain reckoning in fractions does; no interval admits more than it may."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.insights.replay import Bucket, Ceiling, Demand

MINUTE_MS = 60_000
AMOUNTS = st.integers(min_value=0, max_value=12)


@st.composite
def pasts(draw: st.DrawFn, *, apart_ms: int = 40, keeps: bool = True) -> list[Demand]:
    """Requests in the order of their admission, some at once, each using at most what it needs."""
    gaps = draw(st.lists(st.integers(min_value=0, max_value=apart_ms), max_size=25))
    found = []
    for number, at_ms in enumerate(accumulate(gaps, initial=0)):
        needed = draw(AMOUNTS)
        used = draw(st.integers(min_value=0, max_value=needed)) if keeps else needed
        lasts_ms = draw(st.integers(min_value=0, max_value=60))
        found.append(Demand(f"req_{number}", at_ms, at_ms + lasts_ms, needed, used))
    return found


def admitted(limit: Bucket | Ceiling, past: Sequence[Demand]) -> list[Demand]:
    return [demand for demand in past if limit.admits(demand)]


def reckoned(
    past: Sequence[Demand], *, capacity: int, per_minute: int, full_at_ms: Sequence[int]
) -> list[str]:
    """The same decided millisecond by millisecond: fill, give back what ended, start periods, admit."""
    level, held, found = Fraction(capacity), list[Demand](), []
    last_ms = max((demand.at_ms for demand in past), default=0)
    for now_ms in range(last_ms + 1):
        if now_ms:
            out = sum(demand.needed for demand in held)
            level = max(level, min(level + Fraction(per_minute, MINUTE_MS), Fraction(capacity - out)))
        if now_ms in full_at_ms:
            level, held = Fraction(capacity), []
        for demand in [each for each in held if each.end_ms <= now_ms]:
            held.remove(demand)
            level += demand.needed - demand.used
        for demand in (each for each in past if each.at_ms == now_ms):
            level += sum(each.needed - each.used for each in held if each.end_ms <= now_ms)
            held = [each for each in held if each.end_ms > now_ms]
            if demand.needed <= level:
                level -= demand.needed
                held.append(demand)
                found.append(demand.request_id)
    return found


@given(past=pasts(), capacity=AMOUNTS, per_minute=st.integers(min_value=0, max_value=40_000))
def test_a_rate_decides_as_a_plain_reckoning_does(past: list[Demand], capacity: int, per_minute: int) -> None:
    known = [each.request_id for each in admitted(Bucket(capacity, per_minute=per_minute), past)]
    assert known == reckoned(past, capacity=capacity, per_minute=per_minute, full_at_ms=())


@given(
    past=pasts(),
    capacity=AMOUNTS,
    starts=st.lists(st.integers(min_value=1, max_value=300), unique=True).map(sorted),
)
def test_a_budget_decides_as_a_plain_reckoning_does(
    past: list[Demand], capacity: int, starts: list[int]
) -> None:
    known = [each.request_id for each in admitted(Bucket(capacity, full_at_ms=starts), past)]
    assert known == reckoned(past, capacity=capacity, per_minute=0, full_at_ms=starts)


@given(past=pasts(), capacity=AMOUNTS, per_minute=st.integers(min_value=0, max_value=40_000))
@example(past=[Demand("a", 0, 9, 3, 1), Demand("b", 9, 9, 2, 2)], capacity=3, per_minute=0)
def test_a_rate_admits_at_most_its_burst_and_what_time_brings_in_any_interval(
    past: list[Demand], capacity: int, per_minute: int
) -> None:
    served = admitted(Bucket(capacity, per_minute=per_minute), past)
    for first, begin in enumerate(served):
        used = 0
        for end in served[first:]:
            used += end.used
            assert used * MINUTE_MS <= capacity * MINUTE_MS + per_minute * (end.at_ms - begin.at_ms)


@given(past=pasts(), most=st.integers(min_value=0, max_value=4))
@example(past=[Demand("a", 0, 0, 1, 0), Demand("b", 0, 1, 1, 0)], most=1)
def test_never_more_run_at_once_than_may(past: list[Demand], most: int) -> None:
    runs = [demand._replace(needed=1, used=0) for demand in past]
    served = admitted(Bucket(most), runs)
    assert most or not served
    for each in served:
        assert sum(one.at_ms <= each.at_ms < one.end_ms for one in served) <= most
    refused = [demand for demand in runs if demand not in served]
    assert all(sum(one.at_ms <= demand.at_ms < one.end_ms for one in served) >= most for demand in refused)


@given(past=pasts(keeps=False), capacity=AMOUNTS, per_minute=st.integers(min_value=0, max_value=40_000))
def test_a_larger_limit_refuses_no_request_that_comes_first(
    past: list[Demand], capacity: int, per_minute: int
) -> None:
    """Later ones may change places: what is admitted more takes room."""
    small = admitted(Bucket(capacity, per_minute=per_minute), past)
    large = admitted(Bucket(capacity + 1, per_minute=per_minute), past)
    for one, other in zip(past, past, strict=True):
        if one in small and one not in large:
            before = past[: past.index(other)]
            assert any(each in large and each not in small for each in before)


@pytest.mark.parametrize(("most", "served"), [(0, 0), (4, 1), (5, 2), (100, 3)])
def test_a_ceiling_looks_at_each_request_alone(most: int, served: int) -> None:
    past = [Demand("a", 0, 1, 4, 0), Demand("b", 0, 1, 5, 0), Demand("c", 0, 1, 6, 0)]
    assert len(admitted(Ceiling(most), past)) == served


def test_what_a_request_overran_is_taken_too() -> None:
    limit = Bucket(10)
    assert limit.admits(Demand("a", 0, 5, 4, 9))
    assert not limit.admits(Demand("b", 5, 6, 2, 2))
    assert limit.admits(Demand("c", 6, 6, 1, 1))
