"""What a world of quota is made of: allowances, rules that a mutant replaces, processes, records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.asks import Ask, Asks
from billing.quota.exchange import Exchange
from billing.quota.lease import Hold
from billing.quota.leases import Leases, Release
from billing.quota.model import Need, Rate
from tests.billing.quota.twin import Twin

BOUND_S, RENEW_S = 0.15, 0.25
ALLOWANCES = (AllowanceId("alw_a"), AllowanceId("alw_b"))
CONCURRENT, RATED = AllowanceId("alw_c"), AllowanceId("alw_r")
JOURNALED = (*ALLOWANCES, CONCURRENT)
EVERY = (*JOURNALED, RATED)
RATE = Rate(per_minute=120, burst=10)
Pick = Callable[[int], int]


@dataclass(frozen=True)
class Rules:
    """Which parts the world is made of; a mutant replaces one."""

    twin: type[Twin] = Twin
    leases: type[Leases] = Leases
    exchange: type[Exchange] = Exchange
    asks: type[Asks] = Asks


@dataclass
class Entry:
    """A journal's record: admitted (used is None) or settled."""

    request: int
    needs: tuple[Need, ...]
    used: dict[AllowanceId, int] | None = None

    def change(self, need: Need, *, posted: bool) -> int:
        """By how much the record raises what the lease must still cover."""
        if self.used is None:
            return need.amount
        return (0 if posted else min(need.amount, self.used[need.allowance_id])) - need.amount


@dataclass(eq=False)
class Process:
    id: IncarnationId
    leases: Leases
    exchange: Exchange
    journal: list[Entry] = field(default_factory=list)
    durable: int = 0
    posted: int = 0
    alive: bool = True
    unsure: bool = False
    holds: dict[int, Hold] = field(default_factory=dict)
    asks: dict[int, Ask] = field(default_factory=dict)
    releases: dict[int, Release] = field(default_factory=dict)
    parked: dict[int, Entry] = field(default_factory=dict)

    def flush(self, upto: int) -> None:
        """The disk has all records before `upto`."""
        self.durable = max(self.durable, upto)
        for position in [position for position in self.releases if position < upto]:
            self.releases.pop(position).durable()

    def needs_after(self, cut: int) -> dict[AllowanceId, int]:
        """What the leases must still cover if the journal ended at `cut`."""
        due = dict.fromkeys(JOURNALED, 0)
        for entry in self.parked.values():
            for need in entry.needs:
                due[need.allowance_id] += need.amount
        for position, entry in enumerate(self.journal[:cut]):
            for need in entry.needs:
                due[need.allowance_id] += entry.change(need, posted=position < self.posted)
        return due
