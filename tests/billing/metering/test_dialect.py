"""How usage is written, and miswritten: what can be understood counts, the rest is not stated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.convert import Convention, Report, convert
from billing.metering.dialect import MOST_TOKENS, read_timings, read_usage


def _read(**usage: Any) -> Report | None:
    return read_usage(msgspec.json.encode(usage))


def test_usage_is_read_as_vllm_writes_it() -> None:
    usage = _read(
        prompt_tokens=42,
        total_tokens=50,
        completion_tokens=8,
        prompt_tokens_details={"cached_tokens": 40, "created_cache_tokens": 1, "multimodal_tokens": None},
        completion_tokens_details={"reasoning_tokens": 3},
    )
    assert usage == Report(42, 8, 40, 1, 3)


def test_reasoning_is_found_where_sglang_puts_it() -> None:
    assert _read(prompt_tokens=4, completion_tokens=8, reasoning_tokens=3) == Report(4, 8, reasoning=3)


def test_zero_is_stated_and_null_is_not() -> None:
    assert _read(prompt_tokens=0, completion_tokens=0) == Report(0, 0)
    assert _read(prompt_tokens=None, completion_tokens=None, prompt_tokens_details=None) == Report()


@pytest.mark.parametrize(("value", "count"), [(8.0, 8), ("8", 8), (8, 8), (0.0, 0), ("0", 0)])
def test_a_whole_number_is_one_however_it_is_written(value: Any, count: int) -> None:
    report = _read(prompt_tokens=42, completion_tokens=value)
    assert report is not None
    assert (report.prompt, report.completion) == (42, count)
    assert report.malformed is (not isinstance(value, int))


@pytest.mark.parametrize(
    "value", [-1, 8.5, "eight", "8.0", " 8", "", True, [8], {"n": 8}, MOST_TOKENS + 1, 10**30, -0.5, "٨"]
)
def test_what_is_no_count_is_not_stated_and_costs_no_other_field(value: Any) -> None:
    for usage in (
        {"prompt_tokens": 42, "completion_tokens": value},
        {"prompt_tokens": 42, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": value}},
        {"prompt_tokens": 42, "completion_tokens": 8, "completion_tokens_details": value},
    ):
        report = _read(**usage)
        assert report is not None
        assert report.prompt == 42
        assert report.completion in (8, None)
        assert report.cached is None
        if not isinstance(value, dict):  # details that say nothing are details
            assert report.malformed


def test_what_is_malformed_shows_on_the_event() -> None:
    report = _read(prompt_tokens=42.0, completion_tokens=8)
    assert report is not None
    converted = convert(report, convention=Convention.INCLUDES_CACHE)
    assert converted is not None
    assert converted.flags == ("usage_malformed", "cached_unknown")


@pytest.mark.parametrize("raw", [b"null", b"7", b'"usage"', b"[]", b"{", b"", b"[" * 2000])
def test_what_is_no_object_is_no_report(raw: bytes) -> None:
    assert read_usage(raw) is None


def test_a_later_odd_report_does_not_undo_an_earlier_good_one() -> None:
    good = Report(42, 8, 40)
    odd = _read(prompt_tokens=-1, completion_tokens="many")
    assert odd is not None
    assert good.updated(odd) == Report(42, 8, 40, malformed=True)


def test_timings_are_read_as_llama_server_writes_them() -> None:
    assert read_timings(b'{"cache_n":41,"prompt_n":1,"predicted_n":8,"x":1}') == Report(42, 8, 41)
    assert read_timings(b'{"cache_n":-1,"prompt_n":1,"predicted_n":8}') is None
    assert read_timings(b'{"cache_n":41}') is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    [
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "reasoning_tokens",
        "cached_tokens",
    ]
)


@given(st.dictionaries(_FIELDS, _JSON | st.dictionaries(_FIELDS, _JSON)))
def test_whatever_stands_there_is_read_as_counts_or_not_at_all(usage: dict[str, Any]) -> None:
    report = _read(**usage)
    assert report is not None
    for count in (report.prompt, report.completion, report.cached, report.reasoning):
        assert count is None or 0 <= count <= MOST_TOKENS
