"""What requests really have of each limit, by true time: told by each process' leases as they move.

Held and used together stay within a limit at every instant; of a rate, what was consumed stays within what
its bucket holds and what it fills by. What a dead process had counts by what was posted of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.core.ids import AllowanceId
from billing.quota.lease import Hold
from billing.quota.leases import Leases, Release
from billing.quota.model import Need
from tests.simulation.loop import Process

OnTaken = Callable[[str, int], None]


class Tally:
    """Counts over all processes of a run.   on_taken: told of each allowance that more is taken of.

    consumed: of rates, by allowance, how much when.   held, used: by allowance and process.
    """

    def __init__(self, now: Callable[[], float], *, on_taken: OnTaken) -> None:
        self.consumed: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.held: dict[str, Counter[Process]] = defaultdict(Counter)
        self.used: dict[str, Counter[Process]] = defaultdict(Counter)
        self.holds = 0
        self._now = now
        self._on_taken = on_taken

    def taken(self, allowance_id: str, *, posted: int) -> int:
        """What living processes hold, and what is used: posted, or by them alone if that is more."""
        held, used = (_of_living(each[allowance_id]) for each in (self.held, self.used))
        return held + max(used, posted)

    def take(self, process: Process, needs: Sequence[Need]) -> None:
        self.holds += 1
        for need in needs:
            if need.rate is None and need.amount:
                self.held[need.allowance_id][process] += need.amount
                self._on_taken(need.allowance_id, need.amount)

    def give_back(self, process: Process, needs: Sequence[Need], used: Mapping[AllowanceId, int]) -> None:
        for need in needs:
            if need.rate is None:
                self.held[need.allowance_id][process] -= need.amount
                self.used[need.allowance_id][process] += min(used.get(need.allowance_id, 0), need.amount)

    def consume(self, allowance_id: str, amount: int, *, until: float) -> None:
        """A rate is consumed; what its lease had out when it ended counts from then on."""
        self.consumed[allowance_id].append((min(self._now(), until), amount))


def _of_living(amounts: Counter[Process]) -> int:
    return sum(amount for process, amount in amounts.items() if not process.dead)


class CountedLeases(Leases):
    """The leases of a process, each move of which is counted."""

    def __init__(self, tally: Tally, process: Process, **named: Any) -> None:
        super().__init__(**named)
        self._tally = tally
        self._process = process

    def claim(self, needs: Sequence[Need]) -> Hold | None:
        hold = super().claim(needs)
        if hold is not None:
            self._tally.take(self._process, needs)
        return hold

    def consume(self, hold: Hold, allowance_id: AllowanceId, *, total: int) -> None:
        with _Watching(self, hold):
            super().consume(hold, allowance_id, total=total)

    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        self._tally.give_back(self._process, hold.needs, used)
        with _Watching(self, hold):
            return super().settle(hold, used)

    def withdraw(self, hold: Hold) -> None:
        self._tally.give_back(self._process, hold.needs, {})
        super().withdraw(hold)

    def count_consumed(self, before: Mapping[Any, int]) -> None:
        """Tell how much of rates was consumed since."""
        for lease, covered in before.items():
            if lease.covered > covered:
                self._tally.consume(lease.allowance_id, lease.covered - covered, until=lease.ends_at)


class _Watching:
    """Sees how much of a hold's rates is consumed meanwhile."""

    def __init__(self, leases: CountedLeases, hold: Hold) -> None:
        self._leases = leases
        self._before = {
            lease: lease.covered
            for lease, need in zip(hold.leases, hold.needs, strict=True)
            if need.rate is not None and hold.is_of(lease)
        }

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._leases.count_consumed(self._before)
