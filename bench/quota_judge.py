"""Whether limits held and nobody was refused what there was: computed from what happened. Pure, exact.

A `Span` is what one request took of one allowance. Times are nanoseconds of one machine's clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

_PER_MINUTE = 60 * 10**9
_MOST = 1 << 200


class Span(msgspec.Struct, frozen=True):
    """Of one allowance `held` from `taken_ns` to `ended_ns`, then `used` for good (0: it was only held).

    ended_ns None: it never ended.
    """

    taken_ns: int
    ended_ns: int | None
    held: int
    used: int


class Lack(msgspec.Struct, frozen=True):
    """A refusal for want of one allowance: asked from `began_ns` on, refused at `ended_ns`, by a process."""

    began_ns: int
    ended_ns: int
    needed: int
    process: str = ""


class Talk(msgspec.Struct, frozen=True):
    """A process' message to the authority.   out: what it had of the allowance after it, None if not told."""

    sent_ns: int
    answered_ns: int
    out: int | None


def over_at_most(spans: Iterable[Span], *, limit: int) -> int:
    """By how much all that was used and held at one moment passed the limit at its worst; 0: never."""
    worst = out = 0
    for _, change in sorted(_changes(spans), key=lambda each: (each[0], each[1])):
        out += change
        worst = max(worst, out - limit)
    return worst


def over_rate(spans: Iterable[Span], *, per_minute: int, burst: int) -> int:
    """By how much the use in any interval Δ passed burst + per_minute · Δ at its worst, rounded up; 0: never.

    A bucket that starts full and takes each use when its need was taken: its deepest level below zero.
    """
    level = top = burst * _PER_MINUTE
    worst = last_ns = 0
    for span in sorted(spans, key=lambda each: each.taken_ns):
        level = min(top, level + (span.taken_ns - last_ns) * per_minute)
        last_ns = span.taken_ns
        level -= min(span.used, span.held) * _PER_MINUTE
        worst = max(worst, -level)
    return -(-worst // _PER_MINUTE)


def refused_while_available(
    spans: Sequence[Span], lacks: Sequence[Lack], *, limit: int, grace_ns: int
) -> list[Lack]:
    """The refusals for want of what was there all the while that they waited.

    grace_ns: what was freed less than this before does not count: its news is under way.
    """
    changes = sorted(_changes(spans, grace_ns=grace_ns))
    steps, out = [(0, limit)], 0
    for at_ns, change in changes:
        out += change
        steps.append((at_ns, limit - out))
    return [lack for lack in lacks if _least(steps, lack) >= lack.needed]


def refused_while_filled(
    spans: Sequence[Span], lacks: Sequence[Lack], *, per_minute: int, burst: int, grace_ns: int
) -> list[Lack]:
    """The same of a rate: its bucket gives each need whole, and takes back what was not used, later.

    While something is held, the bucket fills no higher than the rest.
    """
    marks = [(lack_ns, 0, 0) for lack in lacks for lack_ns in (lack.began_ns, lack.ended_ns)]
    for span in spans:
        marks.append((span.taken_ns, -span.held, span.held))
        if span.ended_ns is not None:
            marks.append((span.ended_ns + grace_ns, max(span.held - span.used, 0), -span.held))
    steps: list[tuple[int, int]] = []
    level, held, last_ns = burst * _PER_MINUTE, 0, 0
    for at_ns, gained, taken in sorted(marks):
        top = (burst - held) * _PER_MINUTE
        level = max(level, min(top, level + (at_ns - last_ns) * per_minute))
        last_ns = at_ns
        level += gained * _PER_MINUTE
        held += taken
        steps.append((at_ns, level // _PER_MINUTE))
    return [lack for lack in lacks if _least(steps, lack) >= lack.needed]


def all_answered(lack: Lack, talks: Mapping[str, Sequence[Talk]]) -> bool:
    """Whether each other process that had some of it spoke between the first denial and the last try.

    What a process has that does not answer within the bound, nobody can be given.
    """
    mine = [each for each in talks[lack.process] if each.sent_ns >= lack.began_ns]
    mine = [each for each in mine if each.answered_ns <= lack.ended_ns]
    if not mine:
        return False
    denied_ns, tried_ns = mine[0].answered_ns, mine[-1].sent_ns
    return all(
        process == lack.process
        or not _has_some(talk, denied_ns)
        or _speaks(talk, after_ns=denied_ns, before_ns=tried_ns)
        for process, talk in talks.items()
    )


def _has_some(talk: Sequence[Talk], at_ns: int) -> bool:
    told = [each.out for each in talk if each.out is not None and each.answered_ns <= at_ns]
    return bool(told and told[-1])


def _speaks(talk: Sequence[Talk], *, after_ns: int, before_ns: int) -> bool:
    return any(each.sent_ns >= after_ns and each.answered_ns <= before_ns for each in talk)


def _changes(spans: Iterable[Span], *, grace_ns: int = 0) -> Iterable[tuple[int, int]]:
    """When more or less was out: what is freed is so `grace_ns` later."""
    for span in spans:
        yield span.taken_ns, span.held
        if span.ended_ns is not None:
            yield span.ended_ns + grace_ns, span.used - span.held


def _least(steps: Sequence[tuple[int, int]], lack: Lack) -> int:
    """The least that was there at any time of a refusal's wait."""
    first = bisect_right(steps, (lack.began_ns, _MOST)) - 1
    last = bisect_right(steps, (lack.ended_ns, _MOST))
    return min(value for _, value in steps[max(first, 0) : last])
