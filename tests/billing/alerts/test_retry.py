"""Waits grow, differ, and come to an end after about a day."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.alerts.retry import ATTEMPTS, FIRST_WAIT_S, LONGEST_WAIT_S, wait_ms

draws = st.floats(0, 1, exclude_max=True)
HOUR_MS = 3_600_000


@given(st.integers(1, ATTEMPTS - 1), draws)
def test_a_wait_grows_to_a_bound_and_is_never_a_quarter_longer(attempts: int, draw: float) -> None:
    plain, drawn = wait_ms(attempts, draw=0), wait_ms(attempts, draw=draw)
    assert plain is not None
    assert drawn is not None
    assert plain <= drawn <= plain * 5 // 4
    assert FIRST_WAIT_S * 1000 <= plain <= LONGEST_WAIT_S * 1000
    if attempts > 1:
        assert plain >= (wait_ms(attempts - 1, draw=0) or 0)


@given(st.integers(ATTEMPTS, 10**6), draws)
def test_nothing_is_tried_for_ever(attempts: int, draw: float) -> None:
    assert wait_ms(attempts, draw=draw) is None


@given(draws)
def test_a_receiver_has_about_a_day(draw: float) -> None:
    total = sum(wait_ms(attempts, draw=draw) or 0 for attempts in range(1, ATTEMPTS))
    assert 21 * HOUR_MS <= total <= 27 * HOUR_MS
