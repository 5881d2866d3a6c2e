"""The judge of `bench.quota` finds what it looks for."""

from __future__ import annotations

import pytest

from bench.quota_judge import (
    Lack,
    Span,
    Talk,
    all_answered,
    over_at_most,
    over_rate,
    refused_while_available,
    refused_while_filled,
)

S = 10**9


@pytest.mark.parametrize(("limit", "over"), [(10, 0), (9, 1), (4, 6)])
def test_what_is_used_and_held_at_one_moment_is_compared_with_the_limit(limit: int, over: int) -> None:
    first = Span(0, 5 * S, held=6, used=4)
    second = Span(5 * S, 9 * S, held=6, used=6)
    assert over_at_most([first, second], limit=limit) == over


def test_a_hold_that_never_ends_counts_for_good() -> None:
    assert over_at_most([Span(0, None, 3, 0), Span(9 * S, None, 3, 0)], limit=5) == 1


@pytest.mark.parametrize(("after_s", "over"), [(60, 0), (59, 1), (30, 30), (0, 60)])
def test_a_rate_is_passed_by_what_its_bucket_lacks(after_s: int, over: int) -> None:
    spans = [Span(S, None, 60, 60), Span(S + after_s * S, None, 60, 60)]
    assert over_rate(spans, per_minute=60, burst=60) == over


def test_no_double_burst_at_the_edge_of_a_minute() -> None:
    spans = [Span(59 * S, None, 60, 60), Span(61 * S, None, 60, 60)]
    assert over_rate(spans, per_minute=60, burst=60) == 58


@pytest.mark.parametrize(("needed", "found"), [(4, 1), (5, 0)])
def test_a_refusal_is_wrong_if_its_need_was_there_all_the_while(needed: int, found: int) -> None:
    spans = [Span(0, S, held=10, used=6)]
    lack = Lack(2 * S, 3 * S, needed)
    assert len(refused_while_available(spans, [lack], limit=10, grace_ns=0)) == found


def test_what_was_freed_during_the_wait_does_not_make_a_refusal_wrong() -> None:
    spans = [Span(0, 2 * S, held=10, used=0)]
    lack = Lack(S, 3 * S, 1)
    assert refused_while_available(spans, [lack], limit=10, grace_ns=0) == []
    late = Lack(2 * S + 1, 3 * S, 1)
    assert refused_while_available(spans, [late], limit=10, grace_ns=0) == [late]
    assert refused_while_available(spans, [late], limit=10, grace_ns=S // 2) == []


@pytest.mark.parametrize(("began_s", "found"), [(30, 0), (31, 1)])
def test_a_bucket_that_has_filled_makes_a_refusal_wrong(began_s: int, found: int) -> None:
    spans = [Span(0, 0, held=60, used=60)]
    lack = Lack(began_s * S, (began_s + 1) * S, 31)
    assert len(refused_while_filled(spans, [lack], per_minute=60, burst=60, grace_ns=0)) == found


def test_a_bucket_takes_back_what_was_held_and_not_used() -> None:
    spans = [Span(0, S, held=60, used=20)]
    lack = Lack(2 * S, 3 * S, 41)
    assert refused_while_filled(spans, [lack], per_minute=60, burst=60, grace_ns=0) == [lack]
    assert refused_while_filled(spans, [lack], per_minute=60, burst=60, grace_ns=2 * S) == []


@pytest.mark.parametrize(
    ("out", "sent_s", "answered_s", "excused"),
    [(5, 2, 3, False), (5, 1, 3, True), (5, 2, 9, True), (0, 1, 9, False), (None, 1, 9, False)],
)
def test_a_process_that_has_some_and_does_not_speak_after_the_denial_excuses_a_refusal(
    out: int | None, sent_s: int, answered_s: int, *, excused: bool
) -> None:
    mine = [Talk(0, 2 * S, 0), Talk(4 * S, 5 * S, 0)]
    theirs = [Talk(0, S, out), Talk(sent_s * S, answered_s * S, out)]
    lack = Lack(0, 5 * S, 1, "mine")
    assert all_answered(lack, {"mine": mine, "theirs": theirs}) is not excused
