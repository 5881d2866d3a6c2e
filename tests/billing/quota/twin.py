"""The authority's arithmetic in plain Python, rule by rule: the SQL's twin, against which it is compared.

Each rule that a mutant leaves out is a method of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import Answer, LeaseState, Need, Sync

RECALL_S = 1.0
RENEW_TELL_S = 0.5


@dataclass
class Allowance:
    limit: int
    spent: int = 0
    unleased: int = 0
    recall_until: float = 0.0


@dataclass
class Incarnation:
    closed: bool = False
    released: bool = False
    last_sequence: int = 0


@dataclass
class Row:
    """A lease."""

    granted: int = 0
    settled: int = 0
    returned: int = 0
    uncovered: int = 0

    @property
    def outstanding(self) -> int:
        return self.granted - self.settled - self.returned


class Twin:
    """All allowances, incarnations and leases; `told` are the allowances that notifications named."""

    def __init__(self) -> None:
        self.now = 0.0
        self.allowances: dict[AllowanceId, Allowance] = {}
        self.incarnations: dict[IncarnationId, Incarnation] = {}
        self.rows: dict[tuple[AllowanceId, IncarnationId], Row] = {}
        self.told: list[AllowanceId] = []

    def row(self, allowance: AllowanceId, incarnation: IncarnationId) -> Row:
        return self.rows.get((allowance, incarnation), Row())

    def outstanding(self, allowance: AllowanceId) -> int:
        return sum(row.outstanding for (of, _), row in self.rows.items() if of == allowance)

    def available(self, allowance: AllowanceId) -> int:
        own = self.allowances[allowance]
        return own.limit - own.spent - self.outstanding(allowance)

    def sync(self, incarnation: IncarnationId, message: Sync) -> Answer:
        known = self.incarnations.get(incarnation)
        if known is None or self.is_closed(known):
            return Answer(message.sequence, closed=True)
        self.take_returns(incarnation, message)
        verdicts = None
        if self.is_fresh(known, message):
            known.last_sequence = message.sequence
            verdicts = tuple(self.ask(incarnation, needs) for needs in message.asks)
            for report in message.leases:
                self.renew(incarnation, report.allowance_id, report.want)
        mentioned = {r.allowance_id for r in message.leases} | {
            n.allowance_id for a in message.asks for n in a
        }
        states = tuple(self.state(incarnation, allowance) for allowance in sorted(mentioned))
        return Answer(message.sequence, states, verdicts)

    def is_closed(self, incarnation: Incarnation) -> bool:
        return incarnation.closed

    def is_fresh(self, incarnation: Incarnation, message: Sync) -> bool:
        return message.sequence > incarnation.last_sequence

    def take_returns(self, incarnation: IncarnationId, message: Sync) -> None:
        grown = []
        for report in message.leases:
            row = self.rows.get((report.allowance_id, incarnation))
            if row is not None and report.returned > row.returned:
                row.returned = report.returned
                grown.append(report.allowance_id)
        self.tell_askers(grown)

    def ask(self, incarnation: IncarnationId, needs: Sequence[Need]) -> tuple[AllowanceId, ...]:
        lacking = sorted(n.allowance_id for n in needs if n.amount > max(self.available(n.allowance_id), 0))
        for need in needs:
            if self.grants(need, lacking):
                self.give(incarnation, need.allowance_id, need.amount)
        if not self.is_hopeless(needs):
            for allowance in lacking:
                self.recall(allowance)
        return tuple(lacking)

    def is_hopeless(self, needs: Sequence[Need]) -> bool:
        """True if what is spent leaves too little, whatever comes back."""
        known = [(need.amount, own) for need in needs if (own := self.allowances.get(need.allowance_id))]
        return any(amount > max(own.limit - own.spent, 0) for amount, own in known)

    def grants(self, need: Need, lacking: Sequence[AllowanceId]) -> bool:
        return not lacking and need.amount > 0

    def recall(self, allowance: AllowanceId) -> None:
        own = self.allowances[allowance]
        if own.recall_until < self.now + RENEW_TELL_S:
            self.told.append(allowance)
        own.recall_until = self.now + RECALL_S

    def renew(self, incarnation: IncarnationId, allowance: AllowanceId, want: int) -> None:
        give = min(want, self.share(allowance))
        if give > 0 and not self.renewal_waits(allowance):
            self.give(incarnation, allowance, give)

    def share(self, allowance: AllowanceId) -> int:
        return max(self.available(allowance), 0) // 4

    def renewal_waits(self, allowance: AllowanceId) -> bool:
        return self.allowances[allowance].recall_until > self.now

    def give(self, incarnation: IncarnationId, allowance: AllowanceId, amount: int) -> None:
        self.rows.setdefault((allowance, incarnation), Row()).granted += amount

    def state(self, incarnation: IncarnationId, allowance: AllowanceId) -> LeaseState:
        own, row, available = (
            self.allowances[allowance],
            self.row(allowance, incarnation),
            self.available(allowance),
        )
        recall_ms = 1000 if available < 0 else max(round((own.recall_until - self.now) * 1000), 0)
        return LeaseState(allowance, row.granted, row.returned, own.limit, own.spent, available, recall_ms)

    def post(self, incarnation: IncarnationId, uses: Sequence[tuple[AllowanceId, int, int]]) -> None:
        for allowance in sorted({use[0] for use in uses}):
            mine = [use for use in uses if use[0] == allowance]
            recorded, used = sum(use[1] for use in mine), sum(use[2] for use in mine)
            row = self.row(allowance, incarnation)
            taken = self.takes(recorded, row)
            row.settled += taken
            row.uncovered += recorded - taken
            own = self.allowances[allowance]
            own.spent += used
            own.unleased += self.unleased(used, taken)
            if used < taken:
                self.tell_askers([allowance])

    def covers(self, held: int, used: int) -> int:
        return min(held, used)

    def repair_takes(self, parked: int, used: int) -> int:
        """What a parked record takes of its lease when it is repaired to another use."""
        return parked

    def takes(self, recorded: int, row: Row) -> int:
        return min(recorded, row.outstanding)

    def unleased(self, used: int, taken: int) -> int:
        return max(used - taken, 0)

    def close(
        self, incarnation: IncarnationId, parked: Mapping[AllowanceId, int], *, released: bool = False
    ) -> None:
        known = self.incarnations.setdefault(incarnation, Incarnation(closed=True))
        known.released = known.released or (released and not known.closed)
        known.closed = True
        mine = {allowance: row for (allowance, of), row in self.rows.items() if of == incarnation}
        for allowance, row in mine.items():
            row.returned = row.granted - row.settled - self.keeps(row, parked.get(allowance, 0))
        self.tell_askers(list(mine))

    def keeps(self, row: Row, parked: int) -> int:
        return min(row.outstanding, parked)

    def change_limit(self, allowance: AllowanceId, *, by: int) -> None:
        self.allowances[allowance].limit += by
        self.told.append(allowance)

    def tell_askers(self, allowances: Sequence[AllowanceId]) -> None:
        self.told += [a for a in allowances if self.allowances[a].recall_until > self.now]
