"""The process' side of leases: admits from memory. No I/O, no locks: one event loop calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from app.core.clock import Clock, SystemClock
from app.core.ids import AllowanceId
from billing.quota.bucket import Bucket
from billing.quota.lease import UNLEASED, Hold, Lease
from billing.quota.model import Need, Rate, RatesWhenCutOff


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
    """All leases of this process.

    clock: its monotonic time ends leases of rates, also of a process that was stopped for a while.
    rates_when_cut_off: what rates do from `alone_from` on; nothing else ever opens.
    """

    def __init__(self, *, clock: Clock | None = None, rates_when_cut_off: RatesWhenCutOff = "share") -> None:
        self._by_id: dict[AllowanceId, Lease] = {}
        self._monotonic = (clock or SystemClock()).monotonic
        self.rates_when_cut_off = rates_when_cut_off
        self.alone_from: float | None = None
        """Since when rates go by themselves; None while the authority answers."""
        self.closed = False
        self.active: dict[Lease, None] = {}
        """Those that the next renewal looks at."""
        self.on_freed: Callable[[Lease], None] | None = None
        """Told of each lease that got something free while asks wait for it or it is under recall."""

    def admit(self, needs: Sequence[Need]) -> Hold | None:
        """Take all needs from what is free, or none of them and return None. About a microsecond."""
        hold = self.claim(needs)
        if hold is not None:
            for lease, need in zip(hold.leases, needs, strict=True):
                lease.taken += need.amount
        return hold

    def claim(self, needs: Sequence[Need]) -> Hold | None:
        """As `admit`, but does not count as demand: the needs of an ask were counted when it came."""
        if self.closed:
            return None
        find, now = self._by_id.get, 0.0
        leases: list[Lease] = []
        terms: dict[AllowanceId, int] = {}
        for need in needs:
            amount, rate = need.amount, need.rate
            assert amount >= 0
            lease = find(need.allowance_id)
            if rate is not None:
                now = now or self._monotonic()
                lease = self._take_of_rate(need, lease, now=now, terms=terms)
            elif lease is not None and amount <= lease.free:
                lease.free -= amount
                lease.held += amount
            elif not amount:
                lease = lease or self.lease(need.allowance_id)
            else:
                lease = None
            if lease is None:
                self._undo(needs, leases, terms=terms)
                return None
            if not lease.active:
                self.activate(lease)
            leases.append(lease)
        return Hold(needs, leases, terms=terms)

    def consume(self, hold: Hold, allowance_id: AllowanceId, *, total: int) -> None:
        """Of a rate's need, `total` is consumed by now; counts up to what is held, and never falls."""
        at = next(n for n, need in enumerate(hold.needs) if need.allowance_id == allowance_id)
        need, lease = hold.needs[at], hold.leases[at]
        assert need.rate is not None, "only rates are consumed bit by bit"
        grown = min(total, need.amount) - hold.consumed_of(need)
        if grown > 0:
            hold.consumed[allowance_id] = hold.consumed_of(need) + grown
            if hold.is_of(lease):
                lease.held -= grown
                lease.covered += grown

    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        """End a hold with what was used of each of its allowances (an overrun where it is more than held).

        What it frees may be admitted from at once. A rate that `used` does not name used what was
        consumed. Raises KeyError if `used` lacks another allowance of it.
        """
        amounts = [self._amount_used(hold, need, used=used) for need in hold.needs]
        hold.end()
        freed = []
        for lease, need, amount in zip(hold.leases, hold.needs, amounts, strict=True):
            assert amount >= 0
            covered = min(amount, need.amount)
            if need.rate is not None:
                self._end_rate(hold, lease, need=need, consumed=covered)
                continue
            lease.held -= need.amount
            lease.covered += covered
            lease.free += need.amount - covered
            lease.pending += need.amount - covered
            if not lease.active:
                self.activate(lease)
            freed.append((lease, need.amount - covered))
        self.tell_freed(freed)
        return Release(self, freed)

    def withdraw(self, hold: Hold) -> None:
        """Undo a hold of which no record was written: its request went away before it was admitted."""
        hold.end()
        freed = []
        for lease, need in zip(hold.leases, hold.needs, strict=True):
            if need.rate is not None:
                self._end_rate(hold, lease, need=need, consumed=0)
                continue
            lease.held -= need.amount
            lease.free += need.amount
            if not lease.active:
                self.activate(lease)
            freed.append((lease, need.amount))
        self.tell_freed(freed)

    def standing(self, allowance_id: AllowanceId) -> tuple[int, int] | None:
        """The limit and what is available, as last told and with what is free here; None: never told."""
        lease = self._by_id.get(allowance_id)
        if lease is None or not lease.is_known:
            return None
        return lease.limit, max(lease.available + lease.free, 0)

    def lease(self, allowance_id: AllowanceId, rate: Rate | None = None) -> Lease:
        """The lease of an allowance; an empty one if there was none."""
        found = self._by_id.get(allowance_id)
        if found is None:
            found = self._by_id[allowance_id] = Lease(allowance_id, rate)
        elif rate is not None:
            found.rate = rate
        return found

    def find(self, allowance_id: AllowanceId) -> Lease | None:
        return self._by_id.get(allowance_id)

    def activate(self, lease: Lease) -> None:
        """The next renewal looks at it."""
        lease.active = True
        self.active[lease] = None

    def rest(self, lease: Lease) -> None:
        """No renewal looks at it until something happens to it."""
        lease.active = False
        self.active.pop(lease, None)

    def forget(self, lease: Lease) -> None:
        """Keep no memory of an allowance of which nothing is out."""
        self.rest(lease)
        if self._by_id.get(lease.allowance_id) is lease:  # a hold of nothing may keep one already forgotten
            del self._by_id[lease.allowance_id]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def is_alone(self) -> bool:
        """True while rates go by `rates_when_cut_off`."""
        return self.alone_from is not None and self._monotonic() >= self.alone_from

    def tell_freed(self, freed: Iterable[tuple[Lease, int]]) -> None:
        if self.on_freed is None:
            return
        for lease, amount in freed:
            if amount and (lease.waiting or lease.recalled):
                self.on_freed(lease)

    def _amount_used(self, hold: Hold, need: Need, *, used: Mapping[AllowanceId, int]) -> int:
        if need.rate is None:
            return used[need.allowance_id]
        return used.get(need.allowance_id, hold.consumed_of(need))

    def _end_rate(self, hold: Hold, lease: Lease, *, need: Need, consumed: int) -> None:
        """End what a hold has of a rate: what it has not consumed is free, if its lease still stands."""
        before = hold.consumed_of(need)
        consumed = max(consumed, before)
        if not hold.is_of(lease):
            return
        lease.held -= need.amount - before
        lease.covered += consumed - before
        lease.free += need.amount - consumed
        if not lease.active:
            self.activate(lease)
        self.tell_freed([(lease, need.amount - consumed)])

    def _take_of_rate(
        self, need: Need, lease: Lease | None, *, now: float, terms: dict[AllowanceId, int]
    ) -> Lease | None:
        """Take a rate's need from its lease while that lasts, or go by itself; None: it lacks."""
        if lease is not None and now < lease.ends_at and need.amount <= lease.free:
            lease.free -= need.amount
            lease.held += need.amount
        elif need.amount:
            if not self._passes_alone(lease, need, now=now):
                return None
            terms[need.allowance_id] = UNLEASED
            return lease or self.lease(need.allowance_id, need.rate)
        lease = lease or self.lease(need.allowance_id, need.rate)
        terms[need.allowance_id] = lease.term
        return lease

    def _undo(
        self, needs: Sequence[Need], leases: Sequence[Lease], *, terms: Mapping[AllowanceId, int]
    ) -> None:
        for need, lease in zip(needs, leases, strict=False):
            if terms.get(need.allowance_id) != UNLEASED:
                lease.free += need.amount
                lease.held -= need.amount
            elif lease.alone is not None:
                lease.alone.put_back(need.amount)

    def _passes_alone(self, lease: Lease | None, need: Need, *, now: float) -> bool:
        """True if a rate admits a need without the authority, which can't be reached."""
        if self.alone_from is None or now < self.alone_from or need.rate is None:
            return False
        if self.rates_when_cut_off == "open":
            return need.amount <= need.rate.burst
        if self.rates_when_cut_off == "closed" or lease is None or not lease.holders:
            return False
        if lease.alone is None:  # what was free is spent there, so it is not free any more
            lease.alone = Bucket(lease.free, now=max(lease.ends_at, self.alone_from))
            lease.covered += lease.free
            lease.free = 0
        return lease.alone.take(need.amount, rate=need.rate, holders=lease.holders, now=now)
