"""Reports become disjoint classes: never negative, never more than was reported, oddities flagged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.convert import Convention, Report, convert
from billing.metering.model import Usage

_counts = st.one_of(st.none(), st.integers(-5, 10_000))
_reports = st.builds(
    Report, prompt=_counts, completion=_counts, cached=_counts, cache_write=_counts, reasoning=_counts
)


def test_the_cached_part_is_taken_out_of_a_prompt_that_includes_it() -> None:
    report = Report(prompt=100, completion=7, cached=60, cache_write=10, reasoning=3)
    converted = convert(report, convention=Convention.INCLUDES_CACHE)
    assert converted == (Usage(30, 60, 10, 7, 3), ())


def test_a_prompt_that_excludes_its_cached_part_stays_whole() -> None:
    report = Report(prompt=3, completion=550, cached=0, cache_write=12_304)
    converted = convert(report, convention=Convention.EXCLUDES_CACHE)
    assert converted == (Usage(3, 0, 12_304, 550), ())


def test_an_unknown_cached_part_stays_in_the_input_and_is_flagged() -> None:
    converted = convert(Report(prompt=9, completion=1), convention=Convention.INCLUDES_CACHE)
    assert converted == (Usage(input=9, output=1), ("cached_unknown",))


def test_more_cached_than_prompt_is_cut_to_the_prompt_and_flagged() -> None:
    converted = convert(Report(prompt=10, completion=1, cached=15), convention=Convention.INCLUDES_CACHE)
    assert converted == (Usage(0, 10, 0, 1), ("cached_above_input",))


def test_more_cached_than_prompt_proves_an_unknown_convention_to_exclude_it() -> None:
    converted = convert(Report(prompt=10, completion=1, cached=15), convention=Convention.UNKNOWN)
    assert converted == (Usage(10, 15, 0, 1), ("cached_above_input",))


def test_more_reasoning_than_output_is_cut_and_flagged() -> None:
    report = Report(prompt=1, completion=5, cached=0, reasoning=9)
    converted = convert(report, convention=Convention.INCLUDES_CACHE)
    assert converted is not None
    assert converted.usage.reasoning == 5
    assert converted.flags == ("reasoning_above_output",)


@pytest.mark.parametrize(
    "report", [Report(), Report(prompt=4), Report(completion=4), Report(prompt=-1, completion=2)]
)
def test_half_a_report_is_no_usage(report: Report) -> None:
    assert convert(report, convention=Convention.INCLUDES_CACHE) is None


@given(_reports, st.sampled_from(Convention))
def test_no_class_is_negative_and_reasoning_is_part_of_output(report: Report, convention: Convention) -> None:
    converted = convert(report, convention=convention)
    if converted is not None:
        usage = converted.usage
        assert min(usage.input, usage.input_cached, usage.input_cache_write, usage.output) >= 0
        assert 0 <= usage.reasoning <= usage.output


@given(_reports)
def test_where_the_prompt_includes_the_cache_the_classes_add_up_to_it(report: Report) -> None:
    converted = convert(report, convention=Convention.INCLUDES_CACHE)
    if converted is not None:
        usage = converted.usage
        assert usage.input + usage.input_cached + usage.input_cache_write == report.prompt
        assert usage.output == report.completion


@given(st.lists(_reports, min_size=1))
def test_the_last_stated_value_of_each_field_wins(reports: list[Report]) -> None:
    merged = Report()
    for report in reports:
        merged = merged.updated(report)
    for field in Report.__struct_fields__:
        stated = [value for report in reports if (value := getattr(report, field)) is not None]
        assert getattr(merged, field) == (stated[-1] if stated else None)
