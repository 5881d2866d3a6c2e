"""What a request needs and uses, by what an allowance counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.bounds import within
from billing.metering.model import NOTHING, Usage
from billing.metering.uses import COUNTED, needed_of, used_of
from billing.rating.model import Rates, bound, cost

_TOKENS = st.integers(min_value=0, max_value=10**6)
_USAGES = st.builds(Usage, _TOKENS, _TOKENS, _TOKENS, _TOKENS, st.just(0))
_RATES = st.builds(Rates, _TOKENS, _TOKENS, _TOKENS, _TOKENS)
BILLED = Usage(input=700, input_cached=200, input_cache_write=50, output=90, reasoning=10)


@pytest.mark.parametrize(
    ("what", "used"),
    [
        ("picos", 12_345),
        ("tokens", 1040),
        ("input_tokens", 950),
        ("output_tokens", 90),
        ("requests", 1),
        ("concurrent", 0),
    ],
)
def test_each_kind_counts_its_own_classes(what: str, used: int) -> None:
    assert used_of(what, BILLED, cost_picos=12_345) == used


def test_a_request_that_is_not_billed_is_a_request_all_the_same() -> None:
    assert {
        what: used_of(what, NOTHING, cost_picos=0) for what in COUNTED if used_of(what, NOTHING, cost_picos=0)
    } == {"requests": 1}


@pytest.mark.parametrize("what", ["max_output", "max_context", "minutes"])
def test_what_is_no_allowance_is_never_counted_as_nothing(what: str) -> None:
    with pytest.raises(ValueError, match=what):
        used_of(what, BILLED, cost_picos=1)


@given(usage=_USAGES, bounded=_USAGES, rates=_RATES, what=st.sampled_from(COUNTED))
def test_nothing_billed_within_its_bound_uses_more_than_it_needed(
    usage: Usage, bounded: Usage, rates: Rates, what: str
) -> None:
    most = Usage(input=bounded.input, output=bounded.output)
    billed = within(usage, most)
    need = needed_of(
        what, most, cost_picos=bound(input_tokens=most.input, output_tokens=most.output, rates=rates)
    )
    assert 0 <= used_of(what, billed, cost_picos=cost(billed, rates)) <= need
