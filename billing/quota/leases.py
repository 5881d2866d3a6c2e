"""The process' side of leases: admits from memory. No I/O, no clock, no locks: one event loop calls it.

A lease splits what was granted: `granted = free + held + covered + returned`. `pending` is the part of
`free` that settlements freed whose records are not yet durable: requests are admitted from it at once,
but it is not returned, since a power cut would bring the hold back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from app.core.ids import AllowanceId
from billing.quota import demand
from billing.quota.model import Need


class Lease:
    """What this process has of one allowance. `limit`, `spent`, `available`: as the authority last told."""

    __slots__ = (
        "acknowledged", "allowance_id", "available", "covered", "demand", "free", "granted", "held",
        "limit", "noticed_at", "pending", "recall_until", "recalled", "returned", "spent", "taken",
        "used_at", "waiting",
    )  # fmt: skip

    def __init__(self, allowance_id: AllowanceId) -> None:
        self.allowance_id = allowance_id
        self.granted = self.free = self.held = self.covered = self.pending = 0
        self.returned = self.acknowledged = 0
        self.limit = self.spent = self.available = 0
        self.recalled = False
        self.recall_until = 0.0
        self.noticed_at = 0  # sequence of the first message composed after the last notice
        self.waiting = 0  # asks of this process that wait for it
        self.taken = self.demand = 0
        self.used_at = 0.0

    @property
    def returnable(self) -> int:
        """The free part that may go back: never what is freed by a record that is not yet durable."""
        return max(self.free - self.pending, 0)

    @property
    def unspent(self) -> int:
        """The most that there can be, if all who hold some gave it back unused; never below 0."""
        return max(self.limit - self.spent, 0)

    def give_back(self, amount: int) -> None:
        """Move `amount` ≤ returnable from free to returned; the total travels with the next message."""
        assert 0 <= amount <= self.returnable, "only what is free and durable goes back"
        self.free -= amount
        self.returned += amount

    def renew(self, now: float) -> int:
        """What the renewal at `now` wants; gives back what is idle or far too much. Once per renewal."""
        if self.taken:
            self.used_at = now
        idle = now - self.used_at >= demand.IDLE_S
        self.demand = 0 if idle else demand.peak(self.demand, self.taken)
        self.taken = 0
        self.give_back(min(demand.surplus(self.free, self.demand), self.returnable))
        return 0 if self.recalled else demand.want(self.free, self.demand)

    def top_up(self) -> int:
        """What goes with an ask, so that the next requests need not ask: a renewal out of turn."""
        return 0 if self.recalled else demand.want(self.free, max(self.demand, self.taken))

    @property
    def in_use(self) -> bool:
        return bool(self.free or self.held or self.demand or self.taken)


class Hold:
    """What a request took of its leases; settled exactly once."""

    __slots__ = ("leases", "needs", "open")

    def __init__(self, needs: Sequence[Need], leases: Sequence[Lease]) -> None:
        self.needs = tuple(needs)
        self.leases = leases
        self.open = True

    def end(self) -> Iterable[tuple[Lease, Need]]:
        """The leases and what was taken of each; closes the hold."""
        assert self.open, "a hold is settled exactly once"
        self.open = False
        return zip(self.leases, self.needs, strict=True)


class Release:
    """What a settlement freed. Call `durable` when its record is on disk; never if the disk failed."""

    __slots__ = ("_freed", "_owner")

    def __init__(self, owner: Leases, freed: list[tuple[Lease, int]]) -> None:
        self._owner = owner
        self._freed = freed

    def durable(self) -> None:
        """What it freed may now be returned. Idempotent."""
        freed, self._freed = self._freed, []
        for lease, amount in freed:
            lease.pending -= amount
        self._owner.tell_freed(freed)


class Leases:
    """All leases of this process."""

    def __init__(self) -> None:
        self._by_id: dict[AllowanceId, Lease] = {}
        self.closed = False
        self.on_freed: Callable[[Lease], None] | None = None
        """Told of each lease that got something free while asks wait for it or it is under recall."""

    def admit(self, needs: Sequence[Need]) -> Hold | None:
        """Take all needs from what is free, or none of them and return None. About a microsecond."""
        if len(needs) == 1 and not self.closed:
            lease, amount = self._by_id.get(needs[0].allowance_id), needs[0].amount
            if lease is not None and 0 <= amount <= lease.free:
                lease.free -= amount
                lease.held += amount
                lease.taken += amount
                return Hold(needs, (lease,))
        hold = self.claim(needs)
        if hold is not None:
            for lease, need in zip(hold.leases, hold.needs, strict=True):
                lease.taken += need.amount
        return hold

    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        """End a hold with what was used of each of its allowances (an overrun where it is more than held).

        What it frees may be admitted from at once. Raises KeyError if `used` lacks an allowance of it.
        """
        amounts = [used[need.allowance_id] for need in hold.needs]
        freed = []
        for (lease, need), amount in zip(hold.end(), amounts, strict=True):
            assert amount >= 0
            covered = min(amount, need.amount)
            lease.held -= need.amount
            lease.covered += covered
            lease.free += need.amount - covered
            lease.pending += need.amount - covered
            freed.append((lease, need.amount - covered))
        self.tell_freed(freed)
        return Release(self, freed)

    def withdraw(self, hold: Hold) -> None:
        """Undo a hold of which no record was written: its request went away before it was admitted."""
        freed = []
        for lease, need in hold.end():
            lease.held -= need.amount
            lease.free += need.amount
            freed.append((lease, need.amount))
        self.tell_freed(freed)

    def claim(self, needs: Sequence[Need]) -> Hold | None:
        """As `admit`, but does not count as demand: the needs of an ask were counted when it came."""
        if self.closed:
            return None
        by_id = self._by_id
        taken: list[Lease] = []
        for need in needs:
            amount = need.amount
            assert amount >= 0
            lease = by_id.get(need.allowance_id) or self.lease(need.allowance_id)
            if lease.free < amount:
                for earlier, given in zip(taken, needs, strict=False):
                    earlier.free += given.amount
                    earlier.held -= given.amount
                return None
            lease.free -= amount
            lease.held += amount
            taken.append(lease)
        return Hold(needs, taken)

    def lease(self, allowance_id: AllowanceId) -> Lease:
        """The lease of an allowance; an empty one if there was none."""
        found = self._by_id.get(allowance_id)
        if found is None:
            found = self._by_id[allowance_id] = Lease(allowance_id)
        return found

    def find(self, allowance_id: AllowanceId) -> Lease | None:
        return self._by_id.get(allowance_id)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_id.values())

    def tell_freed(self, freed: Iterable[tuple[Lease, int]]) -> None:
        if self.on_freed is None:
            return
        for lease, amount in freed:
            if amount and (lease.waiting or lease.recalled):
                self.on_freed(lease)
