"""The laws of alerts: each threshold once a period, none missed, none without a limit."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.ids import AlertRuleId, AllowanceId, TenantId
from billing.alerts.decide import decide, level_of, marks_for
from billing.alerts.model import Mark, MarkKind, Rule, Standing

TENANT = TenantId("ten_one")
WALLET = Standing(AllowanceId("alw_1"), TENANT, "tenant", TENANT, "picos", "balance", 1000, 0, 0)
BUDGET = msgspec.structs.replace(WALLET, scope_kind="key", scope_id="key_1", window_kind="month")
RULE = Rule(AlertRuleId("alr_1"), TENANT, None, None, None, None, (50,), None, "mem", datetime.now(UTC))

percents = st.builds(Mark, st.just(MarkKind.PERCENT), st.integers(1, 100))
rests = st.builds(Mark, st.just(MarkKind.REMAINING), st.integers(1, 2000))
marks = st.frozensets(percents | rests, max_size=6)
amounts = st.integers(0, 1500)
limits = st.integers(-5, 2000)
moves = st.lists(st.tuples(amounts, amounts, st.none() | limits), max_size=12)


def percent(value: int) -> Mark:
    return Mark(MarkKind.PERCENT, value)


def standing(limit: int, used: int, *, leased: int = 0, **changes: object) -> Standing:
    values = {"limit": limit, "spent": used - leased, "outstanding": leased, **changes}
    return msgspec.structs.replace(WALLET, **values)


def reached(mark: Mark, *, limit: int, used: int) -> bool:
    """What a threshold means, said without division."""
    if mark.kind is MarkKind.PERCENT:
        return 100 * used >= mark.value * limit
    return limit - used < mark.value


@given(marks, limits.filter(lambda limit: limit > 0), amounts, amounts)
def test_all_that_is_reached_is_raised_at_once_whatever_is_leased(
    marks: frozenset[Mark], limit: int, spent: int, leased: int
) -> None:
    there = standing(limit, spent + leased, leased=leased)
    decision = decide(there, marks, told={})
    assert set(decision.raised) == {mark for mark in marks if reached(mark, limit=limit, used=there.used)}
    assert not decision.rearmed


@given(marks, limits.filter(lambda limit: limit > 0), amounts)
def test_the_level_is_the_least_use_at_which_there_is_more_to_say(
    marks: frozenset[Mark], limit: int, used: int
) -> None:
    first = decide(standing(limit, used), marks, told={})
    told = dict.fromkeys(first.raised, used)
    if first.level is None:
        assert not decide(standing(limit, 10 * limit + 9999), marks, told=told).raised
        return
    assert first.level > used
    assert not decide(standing(limit, first.level - 1), marks, told=told).raised
    assert decide(standing(limit, first.level), marks, told=told).raised


@given(marks, moves)
def test_a_threshold_is_told_once_until_a_raised_limit_arms_it_anew(
    marks: frozenset[Mark], moves: list[tuple[int, int, int | None]]
) -> None:
    """A period with a limit that changes, spends that grow, and leases that come and go."""
    told: dict[Mark, int] = {}
    limit_then: dict[Mark, int] = {}
    limit, spent = 1000, 0
    for growth, leased, changed in moves:
        limit, spent = (limit if changed is None else changed), spent + growth
        there = standing(limit, spent + leased, leased=leased)
        decision = decide(there, marks, told=told)
        for mark in decision.rearmed:
            assert limit > limit_then[mark]
            assert not reached(mark, limit=limit, used=max(there.used, told.pop(mark)))
        assert not set(decision.raised) & (told.keys() | set(decision.rearmed))
        for mark in decision.raised:
            told[mark], limit_then[mark] = there.used, limit
        if limit > 0:
            assert all(mark in told for mark in marks if reached(mark, limit=limit, used=there.used))


@given(marks, st.integers(-2000, 0), amounts)
def test_an_allowance_without_a_limit_above_zero_says_nothing(
    marks: frozenset[Mark], limit: int, used: int
) -> None:
    decision = decide(standing(limit, used), marks, told={})
    assert (decision.raised, decision.level) == ((), None)


@given(marks, amounts)
def test_a_limit_that_ended_says_nothing(marks: frozenset[Mark], used: int) -> None:
    assert decide(standing(10, used, ended=True), marks, told={}).raised == ()


@pytest.mark.parametrize(
    ("what", "window"), [("tokens", "minute"), ("concurrent", "running"), ("max_output", "request")]
)
def test_rates_and_what_runs_are_not_watched(what: str, window: str) -> None:
    there = standing(10, 10, what=what, window_kind=window)
    assert decide(there, {percent(50)}, told={}).level is None
    assert decide(there, {percent(50)}, told={}).raised == ()


@given(st.integers(1, 100), st.integers(1, 10**38))
def test_the_level_of_a_share_is_exact_for_every_amount(value: int, limit: int) -> None:
    level = level_of(percent(value), limit=limit)
    assert 100 * level >= value * limit > 100 * (level - 1)


def test_a_limit_raised_a_little_does_not_tell_again_and_one_raised_enough_does() -> None:
    told = {percent(80): 80}
    assert decide(standing(104, 80), {percent(80)}, told=told).rearmed == ()
    decision = decide(standing(107, 80), {percent(80)}, told=told)
    assert (decision.rearmed, decision.raised, decision.level) == ((percent(80),), (), 86)


def test_leases_that_return_do_not_arm_a_threshold() -> None:
    assert decide(standing(100, 10), {percent(80)}, told={percent(80): 95}).rearmed == ()
    assert decide(standing(101, 10), {percent(80)}, told={percent(80): 95}).rearmed == ()


# Which rule counts


def rule(**terms: object) -> Rule:
    return msgspec.structs.replace(RULE, **terms)


def test_without_a_rule_there_are_three_thresholds() -> None:
    assert marks_for(BUDGET, []) == {percent(50), percent(80), percent(100)}


def test_the_most_specific_rule_counts_alone() -> None:
    rules = [
        rule(percents=(10,)),
        rule(percents=(20,), window_kind="month"),
        rule(percents=(30,), what="picos"),
        rule(percents=(40,), scope_kind="key"),
        rule(percents=(60,), scope_kind="key", scope_id="key_1"),
        rule(percents=(70,), scope_kind="key", scope_id="key_2"),
        rule(percents=(90,), tenant_id=TenantId("ten_two"), scope_kind="key", scope_id="key_1"),
    ]
    for expected in (60, 40, 30, 20, 10):
        assert marks_for(BUDGET, rules) == {percent(expected)}
        rules = [each for each in rules if each.percents != (expected,)]


def test_a_rule_without_thresholds_is_silence() -> None:
    assert marks_for(BUDGET, [rule(percents=())]) == frozenset()


def test_a_rest_is_for_the_wallet_only() -> None:
    rules = [rule(percents=(), remaining=5)]
    assert marks_for(WALLET, rules) == {Mark(MarkKind.REMAINING, 5)}
    assert marks_for(BUDGET, rules) == frozenset()
    task = msgspec.structs.replace(WALLET, scope_kind="task", scope_id="tsk_1")
    assert marks_for(task, rules) == frozenset()
