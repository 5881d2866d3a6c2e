"""Nothing above its bound is billed; what is cut first is what costs most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.bounds import capped, within
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed

_COUNTS = st.integers(0, 2**53)
_USAGES = st.builds(Usage, _COUNTS, _COUNTS, _COUNTS, _COUNTS, _COUNTS)
_BOUNDS = st.builds(lambda fresh, output: Usage(input=fresh, output=output), _COUNTS, _COUNTS)


@pytest.mark.parametrize(
    ("usage", "cut"),
    [
        (Usage(60, 30, 10, 50, 9), Usage(60, 30, 10, 50, 9)),
        (Usage(61, 30, 10, 51, 51), Usage(60, 30, 10, 50, 50)),
        (Usage(5, 90, 20, 1, 0), Usage(0, 90, 10, 1, 0)),
        (Usage(5, 120, 20, 1, 0), Usage(0, 100, 0, 1, 0)),
        (Usage(1_165_619, 0, 0, 1_165_619, 0), Usage(100, 0, 0, 50, 0)),
    ],
)
def test_of_too_much_input_what_is_fresh_is_left_out_first(usage: Usage, cut: Usage) -> None:
    assert within(usage, Usage(input=100, output=50)) == cut


@given(_USAGES, _BOUNDS)
def test_no_class_grows_and_the_sums_keep_within_the_bound(usage: Usage, bound: Usage) -> None:
    cut = within(usage, bound)
    assert all(0 <= one <= other for one, other in zip(_classes(cut), _classes(usage), strict=True))
    assert cut.output == min(usage.output, bound.output)
    assert cut.total - cut.output == min(usage.total - usage.output, bound.input)
    assert cut.reasoning <= usage.reasoning


@given(_USAGES, _BOUNDS, st.sampled_from(Outcome), st.sampled_from(UsageSource))
def test_whoever_counted_nothing_above_the_bound_is_billed(
    usage: Usage, bound: Usage, outcome: Outcome, source: UsageSource
) -> None:
    charged = billed(outcome, source, usage, bound=bound)
    assert charged.output <= bound.output
    assert charged.total - charged.output <= bound.input


def test_an_estimate_tells_where_it_was_cut() -> None:
    bound = Usage(input=100, output=50)
    assert capped(Usage(input=100, output=50), bound)[1] == ("estimated",)
    assert capped(Usage(input=60, input_cached=41, output=50), bound)[1] == ("estimated", "input_capped")
    assert capped(Usage(input=1, output=51), bound)[1] == ("estimated", "output_capped")


def _classes(usage: Usage) -> tuple[int, ...]:
    return (usage.input, usage.input_cached, usage.input_cache_write, usage.output)
