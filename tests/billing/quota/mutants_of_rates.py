"""Each rule of rates left out in turn: twins of authority and process that lack one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.asks import Ask, Asks
from billing.quota.exchange import Exchange
from billing.quota.lease import Hold, Lease
from billing.quota.leases import Leases, Release
from billing.quota.model import Answer, Denied, LeaseReport, LeaseState, Need, Rate, Sync
from tests.billing.quota.twin import MICROS, Allowance, Row, Twin

# The bucket


class FillsAboveItsBurst(Twin):
    def room(self, allowance: AllowanceId, rate: Rate) -> int:
        return 10**12


class FillsWhereSomethingIsLent(Twin):
    def room(self, allowance: AllowanceId, rate: Rate) -> int:
        return rate.burst * MICROS


class TakesReportsBeforeItFills(Twin):
    def sync(self, incarnation: IncarnationId, message: Sync) -> Answer:
        if incarnation in self.incarnations:
            self.take_reports(incarnation, message, is_fresh=False)
        return super().sync(incarnation, message)


class NeverFills(Twin):
    def elapsed(self, own: Allowance, until_us: int) -> int:
        return 0


class FillsAgainAfterAStepBack(Twin):
    def elapsed(self, own: Allowance, until_us: int) -> int:
        gone = max(until_us - own.at_us, 0)
        own.at_us = min(own.at_us, until_us)
        return gone


class LosesWhatIsLessThanAMillionth(Twin):
    def refill(self, allowance: AllowanceId, own: Allowance, until_us: int) -> None:
        level, at = own.level, own.at_us
        super().refill(allowance, own, until_us)
        own.level -= (own.level - level) % 1000
        own.at_us = max(at, until_us)


class LendsAndKeeps(Twin):
    def lend(self, allowance: AllowanceId, amount: int) -> None:
        return None


class TakesNoReturnOfARate(Twin):
    def fill(self, allowance: AllowanceId, returned: int) -> None:
        return None


class FillsWithWhatIsConsumed(Twin):
    def consume(self, allowance: AllowanceId, row: Row, total: int) -> None:
        self.allowances[allowance].level += max(total - row.settled, 0) * MICROS
        super().consume(allowance, row, total)


class AddsUpWhatIsConsumed(Twin):
    def consume(self, allowance: AllowanceId, row: Row, total: int) -> None:
        row.settled += total


class AnOldReportLowersWhatIsConsumed(Twin):
    def consume(self, allowance: AllowanceId, row: Row, total: int) -> None:
        row.settled = total


class TakesNoReport(Twin):
    def consume(self, allowance: AllowanceId, row: Row, total: int) -> None:
        return None


class WaitsForABucketToFill(Twin):
    def unspent(self, allowance: AllowanceId) -> int:
        return 10**9 if self.allowances[allowance].rate else super().unspent(allowance)


class RefusesWhatOthersHaveOfARate(Twin):
    def unspent(self, allowance: AllowanceId) -> int:
        own = self.allowances[allowance]
        return own.level // MICROS if own.rate else super().unspent(allowance)


# The end of a lease


class EndsNoLease(Twin):
    def term_us(self) -> int:
        return 10**12


class EndsALeaseBeforeItsProcessDoes(Twin):
    def term_us(self) -> int:
        return 4_000_000


class FillsWithWhatAnEndedLeaseHad(Twin):
    def turn(self, allowance: AllowanceId) -> None:
        for _, incarnation in self.ending(allowance):
            self.allowances[allowance].level += self.row(allowance, incarnation).outstanding * MICROS
        super().turn(allowance)


class FillsBeforeALeaseEndedAsIfItHad(Twin):
    def turn(self, allowance: AllowanceId) -> None:
        for ends_us, incarnation in self.ending(allowance):
            row = self.rows.pop((allowance, incarnation))
            self.ended.append((allowance, incarnation, row.epoch, ends_us))
        super().turn(allowance)


class AnOldTotalTouchesTheNextLease(Twin):
    def is_of(self, report: LeaseReport, row: Row) -> bool:
        return True


class AnOldMessageKeepsALeaseAlive(Twin):
    def take_reports(self, incarnation: IncarnationId, message: Sync, *, is_fresh: bool) -> None:
        super().take_reports(incarnation, message, is_fresh=True)


class HearsOnlyOfGrants(Twin):
    def heard(self, row: Row) -> int:
        return row.heard_us


class CloseReturnsARate(Twin):
    def end_rate(self, allowance: AllowanceId, incarnation: IncarnationId, *, released: bool) -> None:
        row = self.rows.pop((allowance, incarnation), Row())
        self.allowances[allowance].level += row.outstanding * MICROS


class CloseLeavesARate(Twin):
    def end_rate(self, allowance: AllowanceId, incarnation: IncarnationId, *, released: bool) -> None:
        return None


class AReleaseEndsARateAtOnce(Twin):
    def end_rate(self, allowance: AllowanceId, incarnation: IncarnationId, *, released: bool) -> None:
        self.rows.pop((allowance, incarnation), None)


# The process


class _Endless(Lease):
    @property
    def ends_at(self) -> float:
        return 10**9

    @ends_at.setter
    def ends_at(self, _when: float) -> None:
        return None


class _Restless(Lease):
    def must_be_named(self, now: float) -> bool:
        return self.returned > self.acknowledged or now - self.named_at >= 4


class _Unheard(Lease):
    def must_be_named(self, now: float) -> bool:
        return self.returned > self.acknowledged or self.covered > self.reported


class _Idle(Lease):
    def renew(self, now: float) -> int:
        self.used_at = now
        return super().renew(now)


class _Forgetful(Lease):
    is_clear = True


class _Fresh(Lease):
    def _begin(self, state: LeaseState) -> None:
        super()._begin(state)
        self.free = state.granted


class _OneTerm(Lease):
    def _begin(self, state: LeaseState) -> None:
        term = self.term
        super()._begin(state)
        self.term = term


class _Continued(Lease):
    """Takes the totals of the next lease for those of the one that ended."""

    def _begin(self, state: LeaseState) -> None:
        if self.is_known:
            self.epoch = state.epoch
        else:
            super()._begin(state)


class _Talkative(Lease):
    def must_be_named(self, now: float) -> bool:
        return super().must_be_named(now) or self.held > 0


def _of(kind: type[Lease], name: str) -> type[Leases]:
    """Leases of a kind that lacks a rule."""

    def lease(self: Leases, allowance_id: AllowanceId, rate: Rate | None = None) -> Lease:
        if allowance_id not in self._by_id:
            self._by_id[allowance_id] = kind(allowance_id, rate)
        return Leases.lease(self, allowance_id, rate)

    return type(name, (Leases,), {"lease": lease, "__module__": __name__})


AdmitsFromALeaseThatEnded = _of(_Endless, "AdmitsFromALeaseThatEnded")
ReportsConsumptionOnlyWithAWant = _of(_Restless, "ReportsConsumptionOnlyWithAWant")
LetsASilentLeaseEnd = _of(_Unheard, "LetsASilentLeaseEnd")
KeepsIdleTokens = _of(_Idle, "KeepsIdleTokens")
ForgetsWhatIsStillOut = _of(_Forgetful, "ForgetsWhatIsStillOut")
TakesAllThatWasEverGrantedForFree = _of(_Fresh, "TakesAllThatWasEverGrantedForFree")
HoldsTouchTheNextLease = _of(_OneTerm, "HoldsTouchTheNextLease")
KeepsWhatAnEndedLeaseHad = _of(_Continued, "KeepsWhatAnEndedLeaseHad")
NamesEachLeaseAtEachRenewal = _of(_Talkative, "NamesEachLeaseAtEachRenewal")


class NeverForgets(Leases):
    def forget(self, lease: Lease) -> None:
        self.rest(lease)


class ConsumesTheWholeHoldOfARate(Leases):
    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        return super().settle(hold, {need.allowance_id: need.amount for need in hold.needs} | dict(used))


class LeasesFromTheAnswer(Exchange):
    def receive(self, answer: Answer, *, now: float) -> None:
        super().receive(answer, now=now)
        for lease in self.leases:
            lease.ends_at = now + 5


class AsksForMoreThanARateHolds(Exchange):
    def ask(self, needs: Sequence[Need], *, now: float, resolve: object) -> Ask | None:
        smaller = [Need(n.allowance_id, n.amount, n.rate and Rate(n.rate.per_minute, 10**9)) for n in needs]
        return super().ask(smaller, now=now, resolve=resolve)  # type: ignore[arg-type]


class SaysASecondWhateverTheRate(Asks):
    def _end(self, ask: Ask, outcome: Hold | Denied) -> None:
        if isinstance(outcome, Denied) and outcome.retry_after_s:
            outcome = Denied(outcome.allowance_id, outcome.limit, outcome.available, 1.0, outcome.cut_off)
        super()._end(ask, outcome)


ALL = [
    mutant
    for mutant in list(globals().values())
    if isinstance(mutant, type)
    and mutant.__module__ == __name__
    and issubclass(mutant, (Twin, Leases, Exchange, Asks))
]
