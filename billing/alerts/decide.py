"""Which thresholds of an allowance are reached now, and which may be reached once more. Pure.

A threshold is told of once per allowance, and an allowance of a calendar window is one period. What is used
may fall and rise again as leases return and are lent: that is not told twice. Only a limit that was raised,
so far that what was used then lies clearly below the threshold, arms it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from billing.alerts.model import COUNTED, DEFAULT_PERCENTS, WINDOWS, Mark, MarkKind, Rule, Standing

GAP_PERCENT = 5
"""How far below a threshold what is used must be before it is armed anew: points of the limit for a share
(never more than half of the threshold), hundredths of the threshold for a rest."""


class Decision(msgspec.Struct, frozen=True):
    """What is to be done.   level: what must be used before there is something to say again; None: never."""

    raised: tuple[Mark, ...] = ()
    rearmed: tuple[Mark, ...] = ()
    level: int | None = None


def decide(standing: Standing, marks: Iterable[Mark], *, told: Mapping[Mark, int]) -> Decision:
    """What to say of an allowance now. An allowance without a limit above zero has nothing to say.

    told: the thresholds told of and not armed anew, with what was used then.
    """
    if standing.ended or standing.limit <= 0 or not is_watched(standing):
        return Decision()
    rearmed = tuple(
        sorted(mark for mark, used_then in told.items() if _is_below(mark, standing, used_then=used_then))
    )
    armed = sorted(mark for mark in set(marks) if mark not in told or mark in rearmed)
    levels = {mark: level_of(mark, limit=standing.limit) for mark in armed}
    raised = tuple(mark for mark in armed if levels[mark] <= standing.used)
    ahead = [level for mark, level in levels.items() if mark not in raised]
    return Decision(raised, rearmed, min(ahead, default=None))


def is_watched(standing: Standing) -> bool:
    """Whether there are alerts of allowances of this kind."""
    return standing.what in COUNTED and standing.window_kind in WINDOWS


def level_of(mark: Mark, *, limit: int) -> int:
    """The least use at which a threshold is reached; below zero: it always is."""
    if mark.kind is MarkKind.PERCENT:
        return -(-limit * mark.value // 100)
    return limit - mark.value + 1


def marks_for(standing: Standing, rules: Sequence[Rule]) -> frozenset[Mark]:
    """The thresholds of an allowance: those of the most specific rule of its tenant that fits it.

    A scope is more specific than its kind, a kind than what is counted, that than its window.
    """
    fitting = [rule for rule in rules if _fits(rule, standing)]
    if not fitting:
        return frozenset(Mark(MarkKind.PERCENT, percent) for percent in DEFAULT_PERCENTS)
    rule = max(fitting, key=_rank)
    marks = {Mark(MarkKind.PERCENT, percent) for percent in rule.percents}
    if rule.remaining is not None and standing.is_wallet:
        marks.add(Mark(MarkKind.REMAINING, rule.remaining))
    return frozenset(marks)


def _is_below(mark: Mark, standing: Standing, *, used_then: int) -> bool:
    used = max(standing.used, used_then)
    if mark.kind is MarkKind.PERCENT:
        return 200 * used < (2 * mark.value - min(2 * GAP_PERCENT, mark.value)) * standing.limit
    return 100 * (standing.limit - used) >= (100 + GAP_PERCENT) * mark.value


def _fits(rule: Rule, standing: Standing) -> bool:
    asked = (
        (rule.tenant_id, standing.tenant_id),
        (rule.scope_kind, standing.scope_kind),
        (rule.scope_id, standing.scope_id),
        (rule.what, standing.what),
        (rule.window_kind, standing.window_kind),
    )
    return all(wanted in (None, there) for wanted, there in asked)


def _rank(rule: Rule) -> tuple[bool, ...]:
    named = (rule.scope_id, rule.scope_kind, rule.what, rule.window_kind)
    return tuple(name is not None for name in named)
