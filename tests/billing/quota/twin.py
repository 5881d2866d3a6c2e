"""The authority's arithmetic in plain Python, rule by rule: the SQL's twin, against which it is compared.

Each rule that a mutant leaves out is a method of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import Answer, LeaseReport, LeaseState, Need, Rate, Sync

RECALL_S = 1.0
RENEW_TELL_S = 0.5
TERM_US = 6_000_000
MICROS = 1_000_000


@dataclass
class Allowance:
    limit: int
    spent: int = 0
    unleased: int = 0
    recall_until: float = 0.0
    rate: Rate | None = None
    level: int = 0
    at_us: int = 0


def rated(rate: Rate) -> Allowance:
    """A rate whose bucket is full at the beginning of time."""
    return Allowance(rate.per_minute, rate=rate, level=rate.burst * MICROS)


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
    epoch: int = 0
    heard_us: int = 0

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
        self.sequence = 0
        self.ended: list[tuple[AllowanceId, IncarnationId, int, int]] = []
        """Leases that ended by time since this was last emptied: whose, which epoch, when (µs)."""

    @property
    def now_us(self) -> int:
        return round(self.now * MICROS)

    def row(self, allowance: AllowanceId, incarnation: IncarnationId) -> Row:
        return self.rows.get((allowance, incarnation), Row())

    def outstanding(self, allowance: AllowanceId) -> int:
        return sum(row.outstanding for (of, _), row in self.rows.items() if of == allowance)

    def available(self, allowance: AllowanceId) -> int:
        own = self.allowances[allowance]
        if own.rate is not None:
            return own.level // MICROS
        return own.limit - own.spent - self.outstanding(allowance)

    def unspent(self, allowance: AllowanceId) -> int:
        """The most that there can be, if all who hold some gave it back."""
        own = self.allowances[allowance]
        if own.rate is not None:
            return own.level // MICROS + self.outstanding(allowance)
        return own.limit - own.spent

    def sync(self, incarnation: IncarnationId, message: Sync) -> Answer:
        known = self.incarnations.get(incarnation)
        if known is None or self.is_closed(known):
            return Answer(message.sequence, closed=True)
        mentioned = {r.allowance_id for r in message.leases} | {
            n.allowance_id for a in message.asks for n in a
        }
        is_fresh = self.is_fresh(known, message)
        for allowance in sorted(mentioned):
            self.turn(allowance)
        self.take_returns(incarnation, message)
        self.take_reports(incarnation, message, is_fresh=is_fresh)
        verdicts = None
        self.sequence = message.sequence
        if is_fresh:
            known.last_sequence = message.sequence
            verdicts = tuple(self.ask(incarnation, needs) for needs in message.asks)
            for report in message.leases:
                self.renew(incarnation, report.allowance_id, report.want)
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
            if row is not None and self.is_of(report, row) and report.returned > row.returned:
                self.fill(report.allowance_id, report.returned - row.returned)
                row.returned = report.returned
                grown.append(report.allowance_id)
        self.tell_askers(grown)

    def take_reports(self, incarnation: IncarnationId, message: Sync, *, is_fresh: bool) -> None:
        """What was consumed of rates; their leases live on from a new message."""
        for report in message.leases:
            row = self.rows.get((report.allowance_id, incarnation))
            if row is not None and row.epoch and self.is_of(report, row):
                self.consume(report.allowance_id, row, report.consumed)
                if is_fresh:
                    row.heard_us = self.heard(row)

    def is_of(self, report: LeaseReport, row: Row) -> bool:
        return report.epoch == row.epoch

    def consume(self, allowance: AllowanceId, row: Row, total: int) -> None:
        row.settled = max(row.settled, total)

    def heard(self, row: Row) -> int:
        return self.now_us

    def fill(self, allowance: AllowanceId, returned: int) -> None:
        if self.allowances[allowance].rate is not None:
            self.allowances[allowance].level += returned * MICROS

    def turn(self, allowance: AllowanceId) -> None:
        """Bring a rate up to now; leases that ended by then are consumed, each at its end."""
        own = self.allowances.get(allowance)
        if own is None or own.rate is None:
            return
        for ends_us, incarnation in self.ending(allowance):
            self.refill(allowance, own, ends_us)
            row = self.rows.pop((allowance, incarnation))
            self.ended.append((allowance, incarnation, row.epoch, ends_us))
        self.refill(allowance, own, self.now_us)

    def ending(self, allowance: AllowanceId) -> list[tuple[int, IncarnationId]]:
        rows = [(row.heard_us + self.term_us(), of) for (a, of), row in self.rows.items() if a == allowance]
        return sorted(row for row in rows if row[0] <= self.now_us)

    def term_us(self) -> int:
        return TERM_US

    def refill(self, allowance: AllowanceId, own: Allowance, until_us: int) -> None:
        assert own.rate is not None
        room = self.room(allowance, own.rate)
        elapsed = self.elapsed(own, until_us)
        gained = own.rate.per_minute * elapsed // 60
        if own.level + gained >= room:
            own.level, own.at_us = max(room, 0), own.at_us + elapsed
        else:
            own.level += gained
            own.at_us += -(-gained * 60 // own.rate.per_minute) if own.rate.per_minute else elapsed

    def room(self, allowance: AllowanceId, rate: Rate) -> int:
        return (rate.burst - self.outstanding(allowance)) * MICROS

    def elapsed(self, own: Allowance, until_us: int) -> int:
        return max(until_us - own.at_us, 0)

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
        known = [need for need in needs if need.allowance_id in self.allowances]
        return any(need.amount > max(self.unspent(need.allowance_id), 0) for need in known)

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
        row = self.rows.setdefault((allowance, incarnation), Row())
        row.granted += amount
        if self.allowances[allowance].rate is not None:
            self.lend(allowance, amount)
            row.epoch = row.epoch or self.sequence
            row.heard_us = self.now_us

    def lend(self, allowance: AllowanceId, amount: int) -> None:
        self.allowances[allowance].level -= amount * MICROS

    def state(self, incarnation: IncarnationId, allowance: AllowanceId) -> LeaseState:
        own, row, available = (
            self.allowances[allowance],
            self.row(allowance, incarnation),
            self.available(allowance),
        )
        recall_ms = 1000 if available < 0 else max(round((own.recall_until - self.now) * 1000), 0)
        state = LeaseState(
            allowance, row.granted, row.returned, own.limit, own.spent, available, recall_ms, row.settled
        )
        if own.rate is None:
            return state
        holders = sum(of == allowance for of, _ in self.rows)
        spent = own.limit - self.unspent(allowance)
        return msgspec.structs.replace(
            state, spent=spent, epoch=row.epoch, level_micros=own.level, holders=holders
        )

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
            self.turn(allowance)
            if row.epoch:
                self.end_rate(allowance, incarnation, released=released)
                continue
            row.returned = row.granted - row.settled - self.keeps(row, parked.get(allowance, 0))
        self.tell_askers(list(mine))

    def end_rate(self, allowance: AllowanceId, incarnation: IncarnationId, *, released: bool) -> None:
        """Proven dead, it consumes no more; on an operator's word it may, until its lease ends by time."""
        if not released:
            self.rows.pop((allowance, incarnation), None)

    def keeps(self, row: Row, parked: int) -> int:
        return min(row.outstanding, parked)

    def change_limit(self, allowance: AllowanceId, *, by: int) -> None:
        self.allowances[allowance].limit += by
        self.told.append(allowance)

    def tell_askers(self, allowances: Sequence[AllowanceId]) -> None:
        self.told += [a for a in allowances if self.allowances[a].recall_until > self.now]
