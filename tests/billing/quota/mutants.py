"""Each rule of the protocol left out in turn: twins of authority and process that lack one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.asks import Ask, Asks, denial
from billing.quota.exchange import Exchange, _UnderWay
from billing.quota.lease import Hold, Lease
from billing.quota.leases import Leases, Release
from billing.quota.model import Answer, LeaseState, Need, Rate, Sync
from tests.billing.quota import mutants_of_rates
from tests.billing.quota.parts import Rules
from tests.billing.quota.twin import Incarnation, Row, Twin

# Moves 1 and 2: the process


class KeepsPartOfAFailedAdmission(Leases):
    def claim(self, needs: Sequence[Need]) -> Hold | None:
        for need in needs:
            lease = self.lease(need.allowance_id)
            if lease.free < need.amount:
                return None
            lease.free -= need.amount
            lease.held += need.amount
        for need in needs:
            lease = self.lease(need.allowance_id)
            lease.free += need.amount
            lease.held -= need.amount
        return super().claim(needs)


class AdmitsWhatIsNotThere(Leases):
    def claim(self, needs: Sequence[Need]) -> Hold | None:
        for need in needs:
            if self.lease(need.allowance_id).free + 1 < need.amount:
                return None
        leases = [self.lease(need.allowance_id) for need in needs]
        for lease, need in zip(leases, needs, strict=True):
            lease.free -= need.amount
            lease.held += need.amount
        return Hold(needs, leases)


class TakesAnOverrunFromTheLease(Leases):
    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        for lease, need in zip(hold.leases, hold.needs, strict=True):
            over = max(used.get(need.allowance_id, 0) - need.amount, 0)
            lease.free -= over
            lease.covered += over
        return super().settle(hold, used)


class ReturnsWhatIsNotYetDurable(Leases):
    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        super().settle(hold, used).durable()
        return Release(self, [])


class NeverFreesTheRestOfAHold(Leases):
    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release:
        release = super().settle(hold, used)
        for lease, amount in release._freed:
            lease.free -= amount
            lease.pending -= amount
            lease.covered += amount
        return Release(self, [])


# Move 3: post


class PostTakesMoreThanIsOut(Twin):
    def takes(self, recorded: int, row: Row) -> int:
        return recorded


class PostTakesAnOverrunFromTheLease(Twin):
    def covers(self, held: int, used: int) -> int:
        return used


class PostSettlesTheWholeHold(Twin):
    def covers(self, held: int, used: int) -> int:
        return held


class PostForgetsWhatIsUnleased(Twin):
    def unleased(self, used: int, taken: int) -> int:
        return 0


# Move 4: sync


class AnswersTheClosed(Twin):
    def is_closed(self, incarnation: Incarnation) -> bool:
        return False


class GivesToAnOldMessage(Twin):
    def is_fresh(self, incarnation: Incarnation, message: Sync) -> bool:
        return True


class AnOldTotalLowersWhatIsReturned(Twin):
    def take_returns(self, incarnation: IncarnationId, message: Sync) -> None:
        for report in message.leases:
            if (row := self.rows.get((report.allowance_id, incarnation))) is not None:
                row.returned = report.returned


class TotalsAddUp(Twin):
    def take_returns(self, incarnation: IncarnationId, message: Sync) -> None:
        for report in message.leases:
            if (row := self.rows.get((report.allowance_id, incarnation))) is not None:
                row.returned += report.returned


class ARenewalGetsWhatItWants(Twin):
    def share(self, allowance: AllowanceId) -> int:
        return 10**6


class AnswersAnOldMessageWithNothing(Twin):
    def sync(self, incarnation: IncarnationId, message: Sync) -> Answer:
        answer = super().sync(incarnation, message)
        return answer if answer.asks is not None or answer.closed else Answer(message.sequence)


class AddsTheWholeGrantOfEachAnswer(Exchange):
    def _learn(self, state: LeaseState, under_way: _UnderWay, *, now: float) -> bool:
        lease = self.leases.lease(state.allowance_id)
        lease.free += min(state.granted, lease.granted)
        lease.granted += min(state.granted, lease.granted)
        return super()._learn(state, under_way, now=now) or True


# Move 5: return


class KeepsWhatItReturns(Lease):
    def give_back(self, amount: int) -> None:
        self.returned += amount


class KeepsWhatItReturnsOfAll(Leases):
    def lease(self, allowance_id: AllowanceId, rate: Rate | None = None) -> Lease:
        return self._by_id.setdefault(allowance_id, KeepsWhatItReturns(allowance_id, rate))


class ReportsAReturnOnce(Exchange):
    def fail(self, *, now: float) -> None:
        super().fail(now=now)
        for lease in self._unacknowledged:
            lease.acknowledged = lease.returned
        self._unacknowledged.clear()


# Move 6: recall


class AsksWithoutGivingBackItsOwn(Exchange):
    def _gather_asks(self, now: float, wants: dict[Lease, int]) -> tuple[Ask, ...]:
        return self.asks.take_due(now=now)


class GrantsPartOfANeed(Twin):
    def grants(self, need: Need, lacking: Sequence[AllowanceId]) -> bool:
        return need.allowance_id not in lacking and need.amount > 0


class NeverRecalls(Twin):
    def recall(self, allowance: AllowanceId) -> None:
        return None


class RecallsWhatWouldNotDo(Twin):
    def is_hopeless(self, needs: Sequence[Need]) -> bool:
        return False


class GivesUpHopeBecauseOfWhatIsHeld(Twin):
    def is_hopeless(self, needs: Sequence[Need]) -> bool:
        return any(need.amount > self.available(need.allowance_id) for need in needs)


class RecallsSilently(Twin):
    def recall(self, allowance: AllowanceId) -> None:
        super().recall(allowance)
        self.told.clear()


class RecallIsAnEvent(Twin):
    def state(self, incarnation: IncarnationId, allowance: AllowanceId) -> LeaseState:
        s = super().state(incarnation, allowance)
        return LeaseState(s.allowance_id, s.granted, s.returned, s.limit, s.spent, s.available, 0)


class RenewsUnderRecall(Twin):
    def renewal_waits(self, allowance: AllowanceId) -> bool:
        return False


class ForgetsTheAskersOfAReturn(Twin):
    def tell_askers(self, allowances: Sequence[AllowanceId]) -> None:
        return None


class ANoticeEndsWithTheGrantUnderWay(Exchange):
    def notice(self, allowance_id: AllowanceId, *, now: float) -> None:
        super().notice(allowance_id, now=now)
        if (lease := self.leases.find(allowance_id)) is not None:
            lease.noticed_at = 0


class KeepsWhatGetsFreeUnderRecall(Exchange):
    def _freed(self, lease: Lease) -> None:
        return None

    def compose(self, *, now: float) -> Sync | None:
        noticed = [lease for lease in self._recalled if lease.noticed_at <= self._sequence]
        self._recalled.difference_update(noticed)
        return super().compose(now=now)


class RefusesAtTheFirstDenial(Asks):
    def lacked(self, ask: Ask, lacking: Sequence[AllowanceId], *, now: float) -> None:
        ask.tried_last = True
        ask.recalled.update(lacking)
        super().lacked(ask, lacking, now=now)


class _NeverSpent(Lease):
    unspent = 10**9


class WaitsForWhatIsSpent(Leases):
    def lease(self, allowance_id: AllowanceId, rate: Rate | None = None) -> Lease:
        if allowance_id not in self._by_id:
            self._by_id[allowance_id] = _NeverSpent(allowance_id, rate)
        return super().lease(allowance_id, rate)


class _AvailableOnly(Lease):
    @property
    def unspent(self) -> int:
        return max(self.available, 0)


class RefusesWhatIsOnlyHeld(Leases):
    def lease(self, allowance_id: AllowanceId, rate: Rate | None = None) -> Lease:
        if allowance_id not in self._by_id:
            self._by_id[allowance_id] = _AvailableOnly(allowance_id, rate)
        return super().lease(allowance_id, rate)


class NeverTriesALastTime(Asks):
    def lacked(self, ask: Ask, lacking: Sequence[AllowanceId], *, now: float) -> None:
        if not ask.done and now >= ask.deadline - 0.1:
            self._end(ask, denial(ask, lacking))
        else:
            super().lacked(ask, lacking, now=now)


class GivesNoNewBoundToWhatBeginsToLack(Asks):
    def lacked(self, ask: Ask, lacking: Sequence[AllowanceId], *, now: float) -> None:
        if ask.recalled:
            ask.recalled.update(lacking)
        super().lacked(ask, lacking, now=now)


class IgnoresWhatGotFreeMeanwhile(Asks):
    def lacked(self, ask: Ask, lacking: Sequence[AllowanceId], *, now: float) -> None:
        ask.freed = False
        super().lacked(ask, lacking, now=now)


class HoldsForAnAskThatIsGone(Asks):
    def granted(self, ask: Ask) -> None:
        self._leases.claim(ask.needs)


class RefusesNobodyWhenCutOff(Asks):
    def cut_off(self) -> None:
        for ask in list(self._waiting):
            hold = Hold(ask.needs, ask.leases)
            self._end(ask, hold)


# Moves 7 and 8: close and limits


class CloseReturnsWhatIsParked(Twin):
    def keeps(self, row: Row, parked: int) -> int:
        return 0


class CloseReturnsNothing(Twin):
    def keeps(self, row: Row, parked: int) -> int:
        return row.outstanding


class CloseKeepsMoreThanIsOut(Twin):
    def keeps(self, row: Row, parked: int) -> int:
        return parked


class ARepairKeepsTheRest(Twin):
    def repair_takes(self, parked: int, used: int) -> int:
        return min(parked, used)


class ARepairToLessWakesNobody(Twin):
    def post(self, incarnation: IncarnationId, uses: Sequence[tuple[AllowanceId, int, int]]) -> None:
        super().post(incarnation, uses)
        self.told.clear()


class GrantsBelowALoweredLimit(Twin):
    def ask(self, incarnation: IncarnationId, needs: Sequence[Need]) -> tuple[AllowanceId, ...]:
        for need in needs:
            if self.available(need.allowance_id) < 0:
                self.give(incarnation, need.allowance_id, need.amount)
        return super().ask(incarnation, needs)


class ARaisedLimitWakesNobody(Twin):
    def change_limit(self, allowance: AllowanceId, *, by: int) -> None:
        super().change_limit(allowance, by=by)
        self.told.clear()


class NoRecallBelowALoweredLimit(Twin):
    def state(self, incarnation: IncarnationId, allowance: AllowanceId) -> LeaseState:
        s = super().state(incarnation, allowance)
        recall_ms = max(round((self.allowances[allowance].recall_until - self.now) * 1000), 0)
        return LeaseState(s.allowance_id, s.granted, s.returned, s.limit, s.spent, s.available, recall_ms)


def _rules(mutant: type) -> Rules:
    if issubclass(mutant, Twin):
        return Rules(twin=mutant)
    if issubclass(mutant, Leases):
        return Rules(leases=mutant)
    if issubclass(mutant, Exchange):
        return Rules(exchange=mutant)
    assert issubclass(mutant, Asks)
    return Rules(asks=mutant)


MUTANTS = {
    mutant.__name__: _rules(mutant)
    for mutant in [*globals().values(), *mutants_of_rates.ALL]
    if isinstance(mutant, type)
    and mutant.__module__ in (__name__, mutants_of_rates.__name__)
    and issubclass(mutant, (Twin, Leases, Exchange, Asks))
}
"""By name, the rules of a world that lacks one."""
