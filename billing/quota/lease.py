"""What a process has of one allowance, and what a request took of it. No I/O, no clock.

A lease splits what was granted: `granted = free + held + covered + returned`. `pending` is the part of
`free` that settlements freed whose records are not yet durable: requests are admitted from it at once,
but it is not returned, since a power cut would bring the hold back.

A rate's lease also ends by time: nothing is admitted from it after `ends_at`, and once the authority has
closed it another one follows, of another epoch. Holds of the one that ended touch nothing of it: they
carry the `term` in which they were taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.core.ids import AllowanceId
from billing.quota import demand
from billing.quota.bucket import Bucket
from billing.quota.model import LeaseReport, LeaseState, Need, Rate

TERM_S = 5.0
"""A rate's lease is used for this long after the last message was sent that named it and was answered."""
SILENCE_S = 1.0
"""A lease that has something is named at least this often: so it lives, and hears of a recall."""
_NOTHING: Final[Mapping[AllowanceId, int]] = {}
UNLEASED = -1
"""The term of what was admitted without a lease, while the authority could not be reached."""


class Lease:
    """The lease of one allowance. `limit`, `spent`, `available`, …: as the authority last told.

    covered: what settlements took; of a rate, what was consumed.   term: which lease of this process it
    is, counted here.   alone: the bucket of a rate whose authority can't be reached.
    """

    __slots__ = (
        "acknowledged", "active", "allowance_id", "alone", "available", "covered", "demand", "ends_at",
        "epoch", "free", "granted", "held", "holders", "is_known", "is_resting", "level_micros", "limit",
        "named_at", "noticed_at", "outstanding", "pending", "rate", "recall_until", "recalled", "reported",
        "returned", "spent", "taken", "term", "used_at", "waiting",
    )  # fmt: skip

    def __init__(self, allowance_id: AllowanceId, rate: Rate | None = None) -> None:
        self.allowance_id = allowance_id
        self.rate = rate
        self.granted = self.free = self.held = self.covered = self.pending = 0
        self.returned = self.acknowledged = self.reported = 0
        self.limit = self.spent = self.available = self.outstanding = 0
        self.level_micros = self.holders = 0
        self.is_known = False  # the authority has told of it
        self.epoch = self.term = 0
        self.ends_at = 0.0
        self.alone: Bucket | None = None
        self.recalled = False
        self.recall_until = 0.0
        self.noticed_at = 0  # sequence of the first message composed after the last notice
        self.waiting = 0  # asks of this process that wait for it
        self.taken = self.demand = 0
        self.used_at = self.named_at = 0.0
        self.active = self.is_resting = False  # where it is among the renewals

    @property
    def returnable(self) -> int:
        """The free part that may go back: never what is freed by a record that is not yet durable."""
        return max(self.free - self.pending, 0)

    @property
    def unspent(self) -> int:
        """The most that there can be, if all who hold some gave it back unused; never below 0."""
        return max(self.limit - self.spent, 0)

    def learn(self, state: LeaseState) -> bool:
        """Take over what the authority says; False if it has lost a grant that it had told of."""
        if not self.is_known or state.epoch != self.epoch:
            self._begin(state)
        elif state.granted < self.granted:
            return False
        self.free += state.granted - self.granted
        self.granted = state.granted
        self.acknowledged = max(self.acknowledged, state.returned)
        self.reported = max(self.reported, state.settled)
        self.outstanding = state.granted - state.settled - state.returned
        self.limit, self.spent, self.available = state.limit, state.spent, state.available
        self.level_micros, self.holders = state.level_micros, state.holders
        self.alone = None
        return True

    def _begin(self, state: LeaseState) -> None:
        """As the authority has it: what it calls outstanding is free, since nothing of it is known here."""
        self.term += self.is_known
        self.is_known = True
        self.epoch = state.epoch
        self.held = self.pending = 0
        self.granted = state.granted
        self.returned = self.acknowledged = state.returned
        self.covered = self.reported = state.settled
        self.free = state.granted - state.settled - state.returned

    def give_back(self, amount: int) -> None:
        """Move `amount` ≤ returnable from free to returned; the total travels with the next message."""
        assert 0 <= amount <= self.returnable, "only what is free and durable goes back"
        self.free -= amount
        self.returned += amount

    def report(self, want: int) -> LeaseReport:
        """The word on it for the next message."""
        consumed = self.covered if self.rate is not None else 0
        return LeaseReport(self.allowance_id, self.returned, want, consumed, self.epoch)

    def renew(self, now: float) -> int:
        """What the renewal at `now` wants; gives back what is idle or far too much. Once per renewal."""
        if self.taken:
            self.used_at = now
        idle = now - self.used_at >= (demand.IDLE_S if self.rate is None else demand.RATE_IDLE_S)
        self.demand = 0 if idle else demand.peak(self.demand, self.taken)
        self.taken = 0
        self.give_back(min(demand.surplus(self.free, self.demand), self.returnable))
        return 0 if self.recalled else demand.want(self.free, self.demand)

    def top_up(self) -> int:
        """What goes with an ask, so that the next requests need not ask: a renewal out of turn."""
        return 0 if self.recalled else demand.want(self.free, max(self.demand, self.taken))

    def must_be_named(self, now: float) -> bool:
        """True if a renewal has to name it even though it wants nothing."""
        if self.returned > self.acknowledged or (self.rate is not None and self.covered > self.reported):
            return True
        has_some = self.free > 0 or (self.rate is not None and self.held > 0)
        return (has_some or self.recalled) and now - self.named_at >= SILENCE_S

    @property
    def at_rest(self) -> bool:
        """True while no renewal has anything to do with it."""
        if self.free or self.demand or self.taken or self.waiting or self.recalled:
            return False
        return self.rate is None or (not self.held and self.covered <= self.reported)

    @property
    def is_clear(self) -> bool:
        """True if nothing of it is out: a process that forgot it learns it anew from the next grant."""
        return self.at_rest and not self.held and not self.outstanding and self.returned <= self.acknowledged


class Hold:
    """What a request took of its leases; settled exactly once.

    terms: of rates, the term of the lease they were taken of.   consumed: of rates, so far.
    """

    __slots__ = ("consumed", "leases", "needs", "open", "terms")

    def __init__(
        self,
        needs: Sequence[Need],
        leases: Sequence[Lease],
        *,
        terms: Mapping[AllowanceId, int] | None = None,
    ) -> None:
        self.needs = tuple(needs)
        self.leases = leases
        self.terms = terms or _NOTHING
        self.consumed: dict[AllowanceId, int] = {}
        self.open = True

    def end(self) -> None:
        assert self.open, "a hold is settled exactly once"
        self.open = False

    def is_of(self, lease: Lease) -> bool:
        """True if what it took of a rate is of this lease, and not of one that has ended."""
        return self.terms[lease.allowance_id] == lease.term

    def consumed_of(self, need: Need) -> int:
        """How much of a rate's need is consumed by now."""
        return self.consumed.get(need.allowance_id, 0)
