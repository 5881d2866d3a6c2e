"""The process' side over time: what a renewal says, and what traffic away from the limit costs."""

from __future__ import annotations

import pytest

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.exchange import Exchange
from billing.quota.lease import Hold
from billing.quota.leases import Leases
from billing.quota.model import Answer, Denied, Need
from billing.quota.renewals import MOST_NAMED
from tests.billing.quota.twin import Allowance, Incarnation, Twin

A, PROCESS = AllowanceId("alw_a"), IncarnationId("inc_1")
RENEW_S = 0.25


class Line:
    """One process and an authority that answers at once."""

    def __init__(self, limit: int) -> None:
        self.twin, self.leases = Twin(), Leases()
        self.twin.allowances[A] = Allowance(limit)
        self.twin.incarnations[PROCESS] = Incarnation()
        self.exchange = Exchange(self.leases, recall_bound_s=0.15, renew_s=RENEW_S)
        self.syncs = self.asks = 0
        self.outcomes: list[Hold | Denied] = []

    def talk(self, now: float) -> None:
        while self.exchange.has_work(now=now):
            message = self.exchange.compose(now=now)
            if message is not None:
                self.syncs += 1
                self.twin.now = now
                self.exchange.receive(self.twin.sync(PROCESS, message), now=now)

    def request(self, amount: int, now: float) -> Hold:
        hold = self.leases.admit([Need(A, amount)])
        if hold is None:
            self.asks += 1
            self.exchange.ask([Need(A, amount)], now=now, resolve=self.outcomes.append)
            self.talk(now)
            outcome = self.outcomes.pop()
            assert isinstance(outcome, Hold)
            hold = outcome
        return hold


@pytest.mark.parametrize("per_second", [1, 10, 200])
def test_steady_traffic_asks_only_when_it_begins_and_syncs_at_most_once_a_renewal(per_second: int) -> None:
    """Each request holds 100 for a second and uses 10 of it."""
    line, running, seconds = Line(10**9), list[tuple[float, Hold]](), 30
    for number in range(per_second * seconds):
        now = number / per_second
        while running and running[0][0] <= now:
            line.leases.settle(running.pop(0)[1], {A: 10}).durable()
        running.append((now + 1, line.request(100, now)))
        line.talk(now)
    assert line.asks <= 4
    assert line.syncs <= seconds / RENEW_S + line.asks


def test_traffic_that_grows_by_half_each_second_never_waits() -> None:
    line, now = Line(10**12), 0.0
    for second in range(12):
        rate = round(20 * 1.5**second)
        for _ in range(rate):
            now += 1 / rate
            line.talk(now)
            line.leases.settle(line.request(100, now), {A: 100}).durable()
    assert line.asks <= 2


def test_an_idle_lease_is_returned_after_two_seconds_and_then_nothing_is_said() -> None:
    line = Line(1000)
    line.leases.settle(line.request(100, 0.0), {A: 0}).durable()
    for tick in range(1, 20):
        line.talk(tick * RENEW_S)
    assert line.twin.outstanding(A) == 0
    assert line.exchange.next_wake() is None


def test_an_answer_to_a_message_given_up_changes_nothing() -> None:
    line = Line(1000)
    line.exchange.ask([Need(A, 5)], now=0.0, resolve=line.outcomes.append)
    message = line.exchange.compose(now=0.0)
    assert message is not None
    answer = line.twin.sync(PROCESS, message)
    line.exchange.fail(now=0.0)
    line.exchange.receive(answer, now=0.0)
    assert line.leases.lease(A).granted == 0


def test_a_closed_incarnation_refuses_who_waits_and_says_so_once() -> None:
    line, closed = Line(1000), list[bool]()
    line.exchange.on_closed = lambda: closed.append(True)
    line.exchange.ask([Need(A, 5)], now=0.0, resolve=line.outcomes.append)
    message = line.exchange.compose(now=0.0)
    assert message is not None
    line.exchange.receive(Answer(message.sequence, closed=True), now=0.0)
    assert line.outcomes == [Denied(A, 0, 0, 1.0, cut_off=True)]
    assert closed == [True]
    assert line.exchange.compose(now=1.0) is None


def test_a_notice_of_an_allowance_that_was_never_borrowed_is_nothing() -> None:
    line = Line(1000)
    line.exchange.notice(AllowanceId("alw_b"), now=0.0)
    assert line.exchange.next_wake() is None


def test_a_renewal_of_many_leases_goes_in_messages_of_bounded_size_one_after_the_other() -> None:
    line, many = Line(0), [AllowanceId(f"alw_{number}") for number in range(2 * MOST_NAMED + 7)]
    for allowance in many:
        line.twin.allowances[allowance] = Allowance(10**6)
        lease = line.leases.lease(allowance)
        lease.taken = 10
        line.leases.activate(lease)
    sizes = []
    while line.exchange.has_work(now=0.0):
        message = line.exchange.compose(now=0.0)
        assert message is not None
        sizes.append(len(message.leases))
        line.exchange.receive(line.twin.sync(PROCESS, message), now=0.0)
    assert sizes == [MOST_NAMED, MOST_NAMED, 7]
    assert all(line.leases.lease(allowance).free == 40 for allowance in many)
    assert line.exchange.next_wake() == RENEW_S


def test_thousands_of_idle_leases_are_not_looked_at() -> None:
    """Those of running streams rest until their holds end, and are named by no message."""
    line, holds = Line(10**9), []
    for number in range(2000):
        allowance = AllowanceId(f"alw_{number}")
        line.twin.allowances[allowance] = Allowance(1)
        line.exchange.ask([Need(allowance, 1)], now=0.0, resolve=holds.append)
    line.talk(0.0)
    for tick in range(1, 12):
        line.talk(tick * RENEW_S)
    assert (len(line.leases), len(line.leases.active)) == (2000, 0)
    line.request(5, 3.0)
    line.talk(3.0)
    assert list(line.leases.active) == [line.leases.lease(A)]
    assert len(holds) == 2000
