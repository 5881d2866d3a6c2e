"""What an engine did between two moments, from readings of counters that only grow and restart at zero. Pure.

An engine that restarts takes with it what it did since the last reading: nobody can tell those tokens, so
that time is a `hole`, and the requests that ran in it may have been counted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from billing.reconcile.model import Counters, EngineMeter, Reading

_MOST = (1 << 63) - 1
"""What can be kept. An engine that claims more, restart by restart, is wrong enough with this."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a counter says of [begins_at, ends_at].

    counted: a lower bound if there are holes: what was done in them before the restart is missing.
    """

    begins_at: datetime
    ends_at: datetime
    counted: int
    holes: tuple[tuple[datetime, datetime], ...]
    readings: int


def stretch(readings: Sequence[Reading], meter: EngineMeter) -> Stretch | None:
    """What one counter did from the first to the last reading that has it; None with fewer than two.

    readings: in the order of time.
    """
    known = [(each, told) for each in readings if (told := told_by(each.counters, meter)) is not None]
    if len(known) < 2:
        return None
    counted = 0
    holes: list[tuple[datetime, datetime]] = []
    for (before, was), (after, now) in pairwise(known):
        if is_restart(before.counters, after.counters):
            holes.append((before.at, after.at))
            counted += now
        else:
            counted += now - was
    return Stretch(known[0][0].at, known[-1][0].at, min(counted, _MOST), tuple(holes), len(known))


def is_restart(before: Counters, after: Counters) -> bool:
    """True if another process answers now: it says so, or a counter fell."""
    if before.process is not None and after.process is not None and before.process != after.process:
        return True
    pairs = (
        (before.prompt, after.prompt),
        (before.generated, after.generated),
        (before.finished, after.finished),
    )
    return any(was is not None and now is not None and now < was for was, now in pairs)


def told_by(counters: Counters, meter: EngineMeter) -> int | None:
    return counters.prompt if meter is EngineMeter.PROMPT else counters.generated
