from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.registry.speed import PROMPT_TOKEN_WORK, STALE_S, Sizes, Speed, work_of


def test_an_unobserved_speed_is_unknown_and_an_old_one_again() -> None:
    speed = Speed()
    assert speed.ms_per_work(0.0) is None
    speed.observe(duration_ms=1000, work=100, now=0.0)
    assert speed.ms_per_work(STALE_S) == 10.0
    assert speed.ms_per_work(STALE_S + 1) is None


def test_what_was_stale_does_not_drag_on_what_is_new() -> None:
    speed = Speed()
    speed.observe(duration_ms=100_000, work=100, now=0.0)
    speed.observe(duration_ms=1000, work=100, now=STALE_S + 1)
    assert speed.ms_per_work(STALE_S + 1) == 10.0


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e5)), min_size=1))
def test_a_learned_speed_lies_between_the_extremes_observed(observations: list[tuple[float, float]]) -> None:
    speed = Speed()
    for duration_ms, work in observations:
        speed.observe(duration_ms=duration_ms, work=work, now=0.0)
    rates = [ms / work for ms, work in observations]
    learned = speed.ms_per_work(0.0)
    assert learned is not None
    assert min(rates) * (1 - 1e-9) <= learned <= max(rates) * (1 + 1e-9)


def test_a_tiny_slow_request_hardly_counts_against_large_fast_ones() -> None:
    speed = Speed()
    for _ in range(10):
        speed.observe(duration_ms=10_000, work=1000, now=0.0)
    speed.observe(duration_ms=100, work=1, now=0.0)
    assert speed.ms_per_work(0.0) == pytest.approx(10.0, rel=0.01)


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 9999))),
)
def test_expected_work_never_exceeds_what_the_bounds_allow(
    bound: int, max_output: int, seen: list[tuple[int, int]]
) -> None:
    sizes = Sizes()
    for prompt, output in seen:
        sizes.observe(prompt_tokens=prompt, prompt_tokens_bound=5000, output_tokens=output)
    expected = sizes.expected_work(prompt_tokens_bound=bound, max_output_tokens=max_output)
    assert 1 <= expected <= work_of(bound, max_output)


def test_expected_work_follows_what_requests_turn_out_to_be() -> None:
    sizes = Sizes()
    for _ in range(60):
        sizes.observe(prompt_tokens=100, prompt_tokens_bound=1000, output_tokens=20)
    expected = sizes.expected_work(prompt_tokens_bound=1600, max_output_tokens=4096)
    assert expected == pytest.approx(160 * PROMPT_TOKEN_WORK + 20, rel=0.01)
