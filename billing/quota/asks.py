"""Requests that wait for what their process has not: each ends in a hold or in a truthful refusal. Pure.

An ask is tried when it comes, whenever something came back (here, elsewhere, or by a raised limit), and
a last time at its deadline. The deadline is one bound after an allowance was first found lacking, which
starts its recall: each allowance of the need is given its holders' time to answer, once. What is spent
does not come back: a need beyond limit − spent is refused at once, and recalls nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from app.core.ids import AllowanceId
from billing.quota.bucket import MICROS
from billing.quota.lease import Hold, Lease
from billing.quota.leases import Leases
from billing.quota.model import Denied, Need

_LAST_TRIES = 3
"""Bound on tries after the deadline, each owed to something that got free in this process meanwhile."""
_RETRY_AFTER_S = 1.0
_LEAST_WAIT_S = 0.01


class Ask:
    """One waiting request. `resolve` is called once, with its end."""

    __slots__ = (
        "deadline", "done", "due", "freed", "leases", "needs", "recalled", "resolve", "tried_last",
        "tries_left",
    )  # fmt: skip

    def __init__(
        self,
        needs: Sequence[Need],
        leases: Sequence[Lease],
        *,
        deadline: float,
        resolve: Callable[[Hold | Denied], None],
    ) -> None:
        self.needs = tuple(needs)
        self.leases = tuple(leases)
        self.deadline = deadline
        self.resolve = resolve
        self.recalled: set[AllowanceId] = set()
        self.due = True
        self.freed = False
        self.tried_last = False
        self.tries_left = _LAST_TRIES
        self.done = False

    @property
    def pairs(self) -> Iterator[tuple[Need, Lease]]:
        """Each need with the lease of its allowance."""
        return zip(self.needs, self.leases, strict=True)


class Asks:
    """The asks of one process, first come first served."""

    def __init__(self, leases: Leases, *, bound_s: float) -> None:
        self._leases = leases
        self._bound_s = bound_s
        self._waiting: dict[Ask, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, needs: Sequence[Need], *, now: float, resolve: Callable[[Hold | Denied], None]) -> Ask:
        leases = [self._leases.lease(need.allowance_id, need.rate) for need in needs]
        ask = Ask(needs, leases, deadline=now + self._bound_s, resolve=resolve)
        self._waiting[ask] = None
        for lease, need in zip(leases, needs, strict=True):
            lease.waiting += 1
            lease.taken += need.amount
            if not lease.active:
                self._leases.activate(lease)
        return ask

    def abandon(self, ask: Ask) -> None:
        """The request is gone; what is granted to it from now on goes back."""
        if not ask.done:
            ask.done = True
            del self._waiting[ask]
            for lease in ask.leases:
                lease.waiting -= 1

    def serve(self) -> None:
        """Admit whom the process' own free leases cover by now."""
        for ask in list(self._waiting):
            self._try_claim(ask)

    def take_due(self, *, now: float) -> tuple[Ask, ...]:
        """The asks that the message composed at `now` carries."""
        due = tuple(ask for ask in self._waiting if self._is_due(ask, now))
        for ask in due:
            ask.due = ask.freed = False
            ask.tried_last = now >= ask.deadline
        return due

    def any_due(self, *, now: float) -> bool:
        return any(self._is_due(ask, now) for ask in self._waiting)

    def next_deadline(self) -> float | None:
        return min((ask.deadline for ask in self._waiting), default=None)

    def came_back(self, lease: Lease, *, here: bool) -> None:
        """Something of this allowance may be had again: asks for it try anew.

        here: it got free in this process; the authority can be asked with it once it may be returned.
        """
        for ask in self._waiting:
            if lease in ask.leases:
                ask.due = ask.due or not here or lease.returnable > 0
                ask.freed = ask.freed or here

    def granted(self, ask: Ask) -> None:
        """The authority gave the whole need, which is free now: it belongs to this ask if it still waits."""
        if not ask.done:
            self._try_claim(ask)

    def unanswered(self, ask: Ask) -> None:
        """The authority had seen this message before: what it gave, if anything, is free by now."""
        if not ask.done and not self._try_claim(ask):
            ask.due = True

    def lacked(self, ask: Ask, lacking: Sequence[AllowanceId], *, now: float) -> None:
        """The authority denied it for want of these allowances: wait for what returns, or refuse."""
        if ask.done or self._try_claim(ask):
            return
        if hopeless := [need.allowance_id for need, lease in ask.pairs if need.amount > lease.unspent]:
            self._end(ask, denial(ask, hopeless))
            return
        new = set(lacking) - ask.recalled
        if new:
            ask.recalled |= new
            ask.deadline = now + self._bound_s
        elif ask.tried_last and ask.freed and ask.tries_left:
            ask.tries_left -= 1
            ask.deadline = now + self._bound_s
        elif ask.tried_last:
            self._end(ask, denial(ask, lacking))

    def cut_off(self) -> None:
        """The authority can't be reached: money never opens, so all are refused."""
        for ask in list(self._waiting):
            self._end(ask, cut_off_denial(ask.needs, self._leases))

    def _is_due(self, ask: Ask, now: float) -> bool:
        return ask.due or now >= ask.deadline

    def _try_claim(self, ask: Ask) -> bool:
        hold = self._leases.claim(ask.needs)
        if hold is not None:
            self._end(ask, hold)
        return hold is not None

    def _end(self, ask: Ask, outcome: Hold | Denied) -> None:
        self.abandon(ask)
        ask.resolve(outcome)


def denial(ask: Ask, lacking: Sequence[AllowanceId]) -> Denied:
    """The refusal for want of these allowances: names the one that is to be waited for longest."""
    denials = [_denied(need, lease) for need, lease in ask.pairs if need.allowance_id in lacking]
    return max(denials, key=lambda denied: _wait_s(denied.retry_after_s))


def _denied(need: Need, lease: Lease) -> Denied:
    """A need beyond all that is unspent was not preceded by a recall, so this process may have some free."""
    may_return = need.amount <= lease.unspent
    if need.rate is not None:
        retry_after_s = _time_to_fill(need, lease)
    else:
        retry_after_s = _RETRY_AFTER_S if may_return else None
    return Denied(
        need.allowance_id,
        limit=lease.limit,
        available=lease.available if may_return else lease.available + lease.free,
        retry_after_s=retry_after_s,
    )


def _time_to_fill(need: Need, lease: Lease) -> float | None:
    """Seconds until a rate's bucket has what is needed, as it was last told; None: it never will."""
    assert need.rate is not None
    if need.amount > need.rate.burst or not need.rate.per_minute:
        return None
    lacks = need.amount * MICROS - lease.level_micros - lease.free * MICROS
    return max(lacks * 60 / (need.rate.per_minute * MICROS), _LEAST_WAIT_S)


def _wait_s(retry_after_s: float | None) -> float:
    return math.inf if retry_after_s is None else retry_after_s


def beyond_rate(needs: Sequence[Need]) -> Denied | None:
    """The refusal of a need that is more than its rate ever holds."""
    for need in needs:
        if need.rate is not None and need.amount > need.rate.burst:
            return Denied(need.allowance_id, need.rate.per_minute, need.rate.burst, retry_after_s=None)
    return None


def cut_off_denial(needs: Sequence[Need], leases: Leases) -> Denied:
    """The refusal of a process that can't ask: names what lacks here, as it was last told."""
    known = [(need, leases.find(need.allowance_id)) for need in needs]
    need, lease = next(((n, x) for n, x in known if x is None or x.free < n.amount), known[0])
    return Denied(
        need.allowance_id,
        limit=lease.limit if lease else 0,
        available=lease.available if lease else 0,
        retry_after_s=_RETRY_AFTER_S,
        cut_off=True,
    )
