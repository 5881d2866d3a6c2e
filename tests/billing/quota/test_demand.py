"""How much a process keeps follows what its requests take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.quota import demand

amounts = st.integers(0, 10**30)


@given(previous=amounts, taken=amounts)
def test_demand_rises_at_once_and_falls_by_at_most_a_quarter(previous: int, taken: int) -> None:
    now = demand.peak(previous, taken)
    assert now >= taken
    assert 4 * now >= 3 * previous
    assert now <= max(previous, taken)


@given(free=amounts, level=amounts)
def test_what_is_wanted_fills_to_the_target_and_is_never_surplus(free: int, level: int) -> None:
    wanted, extra = demand.want(free, level), demand.surplus(free, level)
    assert min(wanted, extra) == 0
    assert demand.want(free + wanted, level) == 0
    assert demand.surplus(free - extra, level) == 0
    if wanted:
        assert free + wanted == demand.FILL * level
    if extra:
        assert free - extra == demand.FILL * level


@given(level=amounts, free=amounts)
def test_after_a_renewal_traffic_may_double_before_the_next(level: int, free: int) -> None:
    assert free + demand.want(free, level) >= 2 * level


def test_without_demand_all_is_surplus() -> None:
    assert (demand.want(7, 0), demand.surplus(7, 0)) == (0, 7)
