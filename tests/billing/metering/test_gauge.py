from __future__ import annotations

from billing.metering.convert import Report
from billing.metering.gauge import Gauge


def test_nothing_observed_is_no_report_and_not_zero() -> None:
    assert Gauge(per_choice=False).report() is None
    assert Gauge(per_choice=True).report() is None


def test_a_final_report_without_details_keeps_those_known_before() -> None:
    gauge = Gauge(per_choice=False)
    gauge.observe(Report(prompt=10, completion=1, cached=4))
    gauge.observe(Report(prompt=10, completion=3))
    assert gauge.report() == Report(prompt=10, completion=3, cached=4)


def test_an_explicit_zero_replaces_what_was_said_before() -> None:
    gauge = Gauge(per_choice=False)
    gauge.observe(Report(prompt=10, completion=1, cached=4))
    gauge.observe(Report(prompt=10, completion=0, cached=0))
    assert gauge.report() == Report(prompt=10, completion=0, cached=0)


def test_choices_that_count_alone_are_summed_and_their_common_prompt_counts_once() -> None:
    gauge = Gauge(per_choice=True, choices_per_prompt=2)
    for choice, completion in ((0, 1), (1, 1), (0, 4), (1, 3)):
        gauge.observe(Report(prompt=32, completion=completion, cached=31), choice=choice)
    gauge.observe(Report(prompt=32, completion=4, cached=31))
    assert gauge.report() == Report(prompt=32, completion=7, cached=31)


def test_several_prompts_that_count_alone_are_all_counted() -> None:
    gauge = Gauge(per_choice=True, choices_per_prompt=1)
    gauge.observe(Report(prompt=5, completion=3, cached=0), choice=0)
    gauge.observe(Report(prompt=7, completion=2, cached=6), choice=1)
    assert gauge.report() == Report(prompt=12, completion=5, cached=6)


def test_the_last_word_counts_all_choices_and_keeps_what_only_the_chunks_told() -> None:
    gauge = Gauge(per_choice=True, choices_per_prompt=2)
    gauge.observe(Report(prompt=9, completion=3, cached=4), choice=0)
    gauge.observe(Report(prompt=9, completion=5, cached=4), choice=1)
    gauge.conclude(Report(prompt=9, completion=9))
    assert gauge.report() == Report(prompt=9, completion=9, cached=4)


def test_what_no_choice_told_of_its_cache_stays_unknown() -> None:
    gauge = Gauge(per_choice=True, choices_per_prompt=2)
    gauge.observe(Report(prompt=9, completion=3), choice=0)
    gauge.observe(Report(prompt=9, completion=5), choice=1)
    assert gauge.report() == Report(prompt=9, completion=8)
