"""The process' side of the protocol: composes its one message, takes the answer. Pure.

At most one message is under way. An answer counts only for the message under way: a late one of a message
given up changes nothing, since each answer carries cumulative totals and the next one repairs its loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from app.core.ids import AllowanceId
from billing.quota.asks import Ask, Asks, beyond_rate, cut_off_denial
from billing.quota.lease import TERM_S, Hold, Lease
from billing.quota.leases import Leases
from billing.quota.model import Answer, Denied, LeaseState, Need, Rate, Sync
from billing.quota.renewals import Renewals

_NOTICE_HOLDS_S = 1.0
"""How long a notice counts as a recall when no answer says more."""


class _UnderWay(msgspec.Struct, frozen=True):
    sequence: int
    asks: tuple[Ask, ...]
    named: tuple[Lease, ...]
    sent_at: float


class Exchange:
    """One incarnation's conversation with the authority.

    cut_off: the last message failed; asks are refused at once, admission from leases goes on.
    on_closed: called once when the incarnation has ended under us; nothing is admitted any more.
    on_work: called when there is something to send that can't wait for the next renewal.
    """

    def __init__(self, leases: Leases, *, recall_bound_s: float, renew_s: float) -> None:
        self.leases = leases
        self.cut_off = False
        self.on_closed: Callable[[], None] = _nothing
        self.on_work: Callable[[], None] = _nothing
        self.asks = Asks(leases, bound_s=recall_bound_s)
        self._renewals = Renewals(leases)
        self._renew_s = renew_s
        self._renew_at = 0.0
        self._heard_at = -TERM_S  # when the last message was sent that was answered
        self._sequence = 0
        self._under_way: _UnderWay | None = None
        self._recalled: set[Lease] = set()
        self._unacknowledged: set[Lease] = set()
        leases.on_freed = self._freed

    def ask(
        self, needs: Sequence[Need], *, now: float, resolve: Callable[[Hold | Denied], None]
    ) -> Ask | None:
        """Wait for a whole need; None if it was resolved at once."""
        if beyond := beyond_rate(needs):
            resolve(beyond)
            return None
        if self.cut_off or self.leases.closed:
            resolve(cut_off_denial(needs, self.leases))
            return None
        ask = self.asks.add(needs, now=now, resolve=resolve)
        self.on_work()
        return ask

    def notice(self, allowance_id: AllowanceId, *, now: float) -> None:
        """Something changed with an allowance: recalled, returned to, or its limit moved.

        Until a message that is composed after this is answered, the process takes it for a recall.
        """
        lease = self.leases.find(allowance_id)
        if lease is None:
            return
        self._recall(lease, until=max(lease.recall_until, now + _NOTICE_HOLDS_S))
        lease.noticed_at = self._sequence + 1
        self.asks.came_back(lease, here=False)
        if lease.waiting or lease.returnable:
            self.on_work()

    @property
    def busy(self) -> bool:
        """True while a message is under way."""
        return self._under_way is not None

    def awaits(self, answer: Answer) -> bool:
        """True if this answers the message under way."""
        return self._under_way is not None and answer.sequence == self._under_way.sequence

    def has_work(self, *, now: float) -> bool:
        """True if `compose` would find something to say now."""
        wake = self.next_wake()
        return wake is not None and wake <= now

    def next_wake(self) -> float | None:
        """The time at which the next message falls due, None while there is nothing to wait for."""
        if self._under_way or self.leases.closed:
            return None
        if not self.cut_off and self._cannot_wait():
            return 0.0
        times = [self.asks.next_deadline()]
        if self._unacknowledged or self.cut_off or self.leases.active:
            times.append(self._renew_at)
        elif (look := self._renewals.next_look()) is not None:
            times.append(max(look, self._renew_at))
        return min((time for time in times if time is not None), default=None)

    def _cannot_wait(self) -> bool:
        asked = self.asks.any_due(now=0.0) or any(lease.returnable for lease in self._recalled)
        return asked or self._renewals.is_under_way

    def compose(self, *, now: float) -> Sync | None:
        """The next message, or None if there is nothing to say. It must be answered or failed."""
        assert self._under_way is None, "one message at a time"
        if self.leases.closed:
            return None
        self._end_recalls(now)
        self.asks.serve()
        wants: dict[Lease, int] = dict.fromkeys(self._unacknowledged, 0)
        if not self.cut_off:
            for lease in list(self._recalled):
                self._give_back(lease, wants)
        asks = () if self.cut_off else self._gather_asks(now, wants)
        if now >= self._renew_at or self._renewals.is_under_way:
            self._renew(now, wants)
        if not wants and not asks and not self.cut_off:
            return None
        return self._send(wants, asks, now=now)

    def compose_farewell(self, *, now: float) -> Sync:
        """The last message of a clean shutdown: returns all that is free and durable, admits nothing more."""
        assert self._under_way is None, "one message at a time"
        self.leases.closed = True
        self.asks.cut_off()
        wants = dict.fromkeys(self._unacknowledged, 0)
        for lease in self.leases:
            self._give_back(lease, wants)
            if lease.must_be_named(now):
                wants.setdefault(lease, 0)
        return self._send(wants, (), now=now)

    @property
    def has_something_left(self) -> bool:
        """True while a farewell has more to return: the answer to the last told of a grant that was lost."""
        return bool(self._unacknowledged) or any(lease.returnable for lease in self.leases)

    def receive(self, answer: Answer, *, now: float) -> None:
        """Take an answer: what is above the known total is free; then each ask learns its verdict."""
        under_way = self._under_way
        if under_way is None or not self.awaits(answer):
            return
        self._under_way = None
        self.cut_off = False
        self.leases.alone_from = None
        self._heard_at = under_way.sent_at
        if answer.closed or not all(self._learn(state, under_way, now=now) for state in answer.leases):
            self._close()
            return
        if answer.asks is None:
            for ask in under_way.asks:
                self.asks.unanswered(ask)
            return
        verdicts = list(zip(under_way.asks, answer.asks, strict=True))
        for ask, lacking in verdicts:
            if not lacking:
                self.asks.granted(ask)
        for ask, lacking in verdicts:
            if lacking:
                self.asks.lacked(ask, lacking, now=now)

    def fail(self, *, now: float) -> None:
        """The message under way was not answered: refuse who waits, try again at the next renewal.

        What it may still have been granted is told when its leases are named again, with the next message.
        Rates go by themselves once their leases have ended.
        """
        if self._under_way is not None:
            self._unacknowledged.update(self._under_way.named)
        self._under_way = None
        self.cut_off = True
        self.leases.alone_from = self._heard_at + TERM_S
        self._renewals.stop()
        self._renew_at = now + self._renew_s
        self.asks.cut_off()

    def _send(self, wants: dict[Lease, int], asks: tuple[Ask, ...], *, now: float) -> Sync:
        self._sequence += 1
        named = dict.fromkeys(wants) | dict.fromkeys(lease for ask in asks for lease in ask.leases)
        for lease in named:
            lease.named_at = now
        self._under_way = _UnderWay(self._sequence, asks, tuple(named), now)
        reports = tuple(lease.report(want) for lease, want in wants.items())
        return Sync(self._sequence, reports, tuple(ask.needs for ask in asks))

    def _renew(self, now: float, wants: dict[Lease, int]) -> None:
        """Ask for what leases in use lack, return what they have too much of; cut off, only knock."""
        if not self._renewals.is_under_way:
            self._renew_at = now + self._renew_s
            self._renewals.begin()
        if self.cut_off:
            return
        for lease, want in self._renewals.walk(now):
            wants[lease] = want
            self._note_returned(lease)

    def _gather_asks(self, now: float, wants: dict[Lease, int]) -> tuple[Ask, ...]:
        """The asks due, having given back the process' own free part of all their allowances."""
        due = self.asks.take_due(now=now)
        for ask in due:
            for lease in ask.leases:
                self._give_back(lease, wants)
                wants[lease] = lease.top_up()
        return due

    def _give_back(self, lease: Lease, wants: dict[Lease, int]) -> None:
        if lease.returnable:
            lease.give_back(lease.returnable)
            self._note_returned(lease)
            wants.setdefault(lease, 0)

    def _note_returned(self, lease: Lease) -> None:
        if lease.returned > lease.acknowledged:
            self._unacknowledged.add(lease)

    def _learn(self, state: LeaseState, under_way: _UnderWay, *, now: float) -> bool:
        """Take over what the authority says; False if it has lost a grant that it had told of."""
        kind = Rate(state.limit, state.limit) if state.epoch else None
        lease = self.leases.find(state.allowance_id) or self.leases.lease(state.allowance_id, kind)
        if not lease.learn(state):
            return False
        if lease.acknowledged >= lease.returned:
            self._unacknowledged.discard(lease)
        lease.ends_at = under_way.sent_at + TERM_S
        if not lease.active and not lease.at_rest:
            self.leases.activate(lease)
        if state.recall_ms:  # below a lowered limit, until the authority says that it is over
            self._recall(lease, until=math.inf if state.available < 0 else now + state.recall_ms / 1000)
        elif lease.noticed_at <= under_way.sequence:
            self._end_recall(lease)
        return True

    def _freed(self, lease: Lease) -> None:
        """Something of a lease that is waited for or under recall got free or durable."""
        self.asks.came_back(lease, here=True)
        if lease.waiting:
            self.asks.serve()
        if lease.returnable or lease.waiting:
            self.on_work()

    def _recall(self, lease: Lease, *, until: float) -> None:
        lease.recalled = True
        lease.recall_until = until
        self._recalled.add(lease)
        if not lease.active:
            self.leases.activate(lease)

    def _end_recall(self, lease: Lease) -> None:
        lease.recalled = False
        self._recalled.discard(lease)

    def _end_recalls(self, now: float) -> None:
        for lease in [lease for lease in self._recalled if lease.recall_until <= now]:
            self._end_recall(lease)

    def _close(self) -> None:
        self.leases.closed = True
        self.asks.cut_off()
        self.on_closed()


def _nothing() -> None:
    return None
