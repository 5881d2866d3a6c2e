"""Whether a request was refused though what was really uncommitted covered it, all the while.

Weighed after a run from its journals alone: committed are the holds of requests that were admitted and not
settled, and what settled ones cost. An admission counts from its record's time, which is before its process
asked for what it lacked: so a few refusals pass that could be doubted, and none is blamed wrongly. Only in
runs in which every process could answer within the bound: nobody dies, and no message is slow or lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billing.quota.model import Denied, Need
from tests.simulation.arena import EPOCH_MS
from tests.simulation.plan import LIMIT_EDITS

if TYPE_CHECKING:
    from billing.quota.borrower import Borrower
    from tests.simulation.evidence import Evidence
    from tests.simulation.outcome import Outcome
    from tests.simulation.world import World

_HARMLESS = frozenset(
    {"limit", "grant", "dated_grant", "correction", "price", "journal_copied", *LIMIT_EDITS}
)
"""Troubles that keep no process from answering."""
_WINDOW_MS = 40
"""What is freed or taken so shortly before or after can't be known to all: a sync, a message, an answer."""


@dataclass(frozen=True)
class Refused:
    """What a denied request needed of the allowance that lacked.   at_ms: in the time of the run."""

    at_ms: int
    allowance_id: str
    amount: int
    is_rate: bool = False


class Overheard:
    """The borrower of a process, and a note of each request that it denies by what it knows."""

    def __init__(self, borrower: Borrower, world: World) -> None:
        self._borrower = borrower
        self._world = world

    async def ask(self, needs: Sequence[Need]) -> Any:
        outcome = await self._borrower.ask(needs)
        if isinstance(outcome, Denied) and not outcome.cut_off:
            lacked = next(need for need in needs if need.allowance_id == outcome.allowance_id)
            at_ms = round(self._world.loop.time() * 1000)
            refused = Refused(at_ms, lacked.allowance_id, lacked.amount, is_rate=lacked.rate is not None)
            self._world.refused.append(refused)
        return outcome


def weigh_refusals(world: World, evidence: Evidence, outcome: Outcome) -> None:
    """Count the refusals whose need was covered from a window before them to a window after."""
    plan = world.plan
    if plan.deaths or plan.slow or any(trouble.what not in _HARMLESS for trouble in plan.troubles):
        return
    changes = _changes(world, evidence)
    for refused in world.refused:
        if refused.is_rate:
            continue
        left = _least(changes[refused.allowance_id], around_ms=refused.at_ms)
        outcome.weighed += 1
        if left >= refused.amount:
            outcome.found(
                "refused_while_available",
                f"{refused.amount} refused at {refused.at_ms} ms, {left} were uncommitted",
            )


def _changes(world: World, evidence: Evidence) -> dict[str, list[tuple[int, int]]]:
    """By allowance, when what is uncommitted changed, and by how much."""
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for allowance_id, limits in world.watch.limits.items():
        before = 0
        for at_ms, limit in limits:
            changes[allowance_id].append((at_ms, limit - before))
            before = limit
    for request_id, admissions in evidence.admitted.items():
        admitted = admissions[0]
        for held in admitted.holds:
            changes[held.allowance_id].append((admitted.at_ms - EPOCH_MS, -held.amount))
        for settled in evidence.settled.get(request_id, ())[:1]:
            for used in settled.used:
                changes[used.allowance_id].append((settled.at_ms - EPOCH_MS, used.held - used.used))
    return {allowance_id: sorted(each) for allowance_id, each in changes.items()}


def _least(changes: Sequence[tuple[int, int]], *, around_ms: int) -> int:
    """The least that was uncommitted in the window around a moment."""
    left, least = 0, None
    for at_ms, change in changes:
        if at_ms > around_ms + _WINDOW_MS:
            break
        if at_ms >= around_ms - _WINDOW_MS:
            least = left if least is None else min(least, left)
        left += change
    return left if least is None else min(least, left)
