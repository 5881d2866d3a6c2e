from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.bounds import input_bound, output_bound
from billing.metering.convert import Convention, Report
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from billing.metering.policy import BILLED, billed
from billing.metering.weigh import weigh, weigh_counted

_USAGE = Usage(10, 20, 5, 7, 3)
_BOUND = Usage(input=100, output=50)


def test_the_table_says_something_for_every_outcome_and_source() -> None:
    assert set(BILLED) == set(Outcome)
    for outcome in Outcome:
        assert set(BILLED[outcome]) == set(UsageSource)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CLIENT_CANCELLED, Outcome.TIMED_OUT])
def test_what_was_delivered_and_counted_is_billed_whole(outcome: Outcome) -> None:
    for source in (UsageSource.ENGINE, UsageSource.ENGINE_PARTIAL, UsageSource.TOKENIZER):
        assert billed(outcome, source, _USAGE) == _USAGE


@pytest.mark.parametrize("outcome", [Outcome.ENGINE_FAILED, Outcome.REFUSED_BY_ENGINE, Outcome.LOST])
def test_what_our_side_broke_is_free(outcome: Outcome) -> None:
    for source in UsageSource:
        assert billed(outcome, source, _USAGE) == NOTHING


@pytest.mark.parametrize("outcome", Outcome)
def test_what_nobody_counted_is_not_billed(outcome: Outcome) -> None:
    assert billed(outcome, UsageSource.UNKNOWN, _USAGE) == NOTHING


def test_no_report_is_unknown_with_its_bound_and_not_zero() -> None:
    weighed = weigh(None, convention=Convention.INCLUDES_CACHE, complete=True, bound=_BOUND)
    assert weighed == (NOTHING, UsageSource.UNKNOWN, _BOUND, ())


def test_a_report_of_zero_is_known() -> None:
    report = Report(prompt=0, completion=0, cached=0)
    weighed = weigh(report, convention=Convention.INCLUDES_CACHE, complete=True, bound=_BOUND)
    assert weighed == (NOTHING, UsageSource.ENGINE, None, ())


def test_a_cut_answer_is_partial_and_its_cached_part_unknown() -> None:
    report = Report(prompt=42, completion=3)
    weighed = weigh(report, convention=Convention.INCLUDES_CACHE, complete=False, bound=_BOUND)
    assert weighed == (Usage(input=42, output=3), UsageSource.ENGINE_PARTIAL, None, ("cached_unknown",))


def test_a_report_beyond_the_bound_is_kept_and_flagged() -> None:
    report = Report(prompt=101, completion=51, cached=0)
    weighed = weigh(report, convention=Convention.INCLUDES_CACHE, complete=True, bound=_BOUND)
    assert weighed.usage == Usage(input=101, output=51)
    assert weighed.flags == ("input_above_bound", "output_above_bound")


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_tokenizers_count_never_exceeds_the_bound(input_tokens: int, output_tokens: int) -> None:
    weighed = weigh_counted(input_tokens=input_tokens, output_tokens=output_tokens, bound=_BOUND)
    assert weighed.usage.input <= _BOUND.input
    assert weighed.usage.output <= _BOUND.output
    assert weighed.source is UsageSource.TOKENIZER


def test_text_is_bounded_by_its_bytes_and_an_image_by_the_context() -> None:
    assert input_bound(100, prompts=1, context_limit=4096, is_text=True) == 612
    assert input_bound(10**6, prompts=1, context_limit=4096, is_text=True) == 4096
    assert input_bound(100, prompts=1, context_limit=4096, is_text=False) == 4096
    assert output_bound(16, choices=3) == 48
