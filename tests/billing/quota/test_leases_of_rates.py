"""Rates in a process' memory: consumed bit by bit, ended by time, and alone while the authority is away."""

from __future__ import annotations

import pytest

from app.core.clock import ManualClock
from app.core.ids import AllowanceId
from billing.quota.lease import TERM_S, Lease
from billing.quota.leases import Leases
from billing.quota.model import LeaseState, Need, Rate, RatesWhenCutOff

WALLET, TOKENS = AllowanceId("alw_a"), AllowanceId("alw_r")
RATE = Rate(per_minute=600, burst=100)


class Scene:
    """A process that has something of a wallet and of a rate, which it shares with others."""

    def __init__(
        self, when_cut_off: RatesWhenCutOff = "share", *, tokens: int = 40, holders: int = 4
    ) -> None:
        self.clock = ManualClock()
        self.leases = Leases(clock=self.clock, rates_when_cut_off=when_cut_off)
        self.wallet = self.leases.lease(WALLET)
        self.wallet.learn(LeaseState(WALLET, 1000, 0, 5000, 0, 4000, 0))
        self.tokens = self.leases.lease(TOKENS, RATE)
        self.hear(tokens, holders=holders)

    def hear(self, granted: int, *, settled: int = 0, epoch: int = 1, holders: int = 1) -> None:
        """The authority answers a message that was sent now."""
        state = LeaseState(
            TOKENS, granted, 0, RATE.per_minute, 500, 60, 0, settled, epoch, 60_000_000, holders
        )
        assert self.tokens.learn(state)
        self.tokens.ends_at = self.clock.monotonic() + TERM_S
        self.leases.alone_from = None

    def lose(self) -> None:
        """No message is answered from now on."""
        self.leases.alone_from = self.clock.monotonic() + TERM_S

    def admits(self, tokens: int, *, picos: int = 1) -> bool:
        return self.leases.admit([Need(WALLET, picos), Need(TOKENS, tokens, RATE)]) is not None


def parts(lease: Lease) -> tuple[int, int, int]:
    return lease.free, lease.held, lease.covered


def test_a_rate_is_consumed_bit_by_bit_and_the_rest_is_free() -> None:
    scene = Scene()
    hold = scene.leases.admit([Need(TOKENS, 30, RATE)])
    assert hold is not None
    scene.leases.consume(hold, TOKENS, total=10)
    scene.leases.consume(hold, TOKENS, total=7)
    assert parts(scene.tokens) == (10, 20, 10)
    scene.leases.consume(hold, TOKENS, total=99)
    assert parts(scene.tokens) == (10, 0, 30), "never more than it holds"


@pytest.mark.parametrize(
    ("used", "left"), [({}, (30, 0, 10)), ({TOKENS: 25}, (15, 0, 25)), ({TOKENS: 4}, (30, 0, 10))]
)
def test_a_settlement_says_at_most_more_than_what_was_consumed(
    used: dict[AllowanceId, int], left: tuple[int, int, int]
) -> None:
    scene = Scene()
    hold = scene.leases.admit([Need(TOKENS, 30, RATE)])
    assert hold is not None
    scene.leases.consume(hold, TOKENS, total=10)
    scene.leases.settle(hold, used)
    assert parts(scene.tokens) == left
    assert scene.tokens.returnable == left[0], "a rate waits for no record"


def test_only_rates_are_consumed_bit_by_bit() -> None:
    scene = Scene()
    hold = scene.leases.admit([Need(WALLET, 30)])
    assert hold is not None
    with pytest.raises(AssertionError, match="only rates"):
        scene.leases.consume(hold, WALLET, total=10)


def test_a_process_that_was_stopped_admits_nothing_of_a_lease_that_ended() -> None:
    """No timer of it has run since."""
    scene = Scene()
    assert scene.admits(5)
    scene.clock.advance(10)
    assert not scene.admits(5)
    assert scene.wallet.held == 1, "and takes nothing of what does not end"
    scene.hear(40)
    assert scene.admits(5), "it was stopped, and its lease was not"


def test_a_rate_alone_goes_on_at_its_share_from_what_was_free() -> None:
    scene = Scene(tokens=40, holders=4)
    scene.lose()
    scene.clock.advance(TERM_S)
    assert scene.leases.is_alone
    assert not scene.admits(41)
    assert scene.admits(40)
    assert not scene.admits(1)
    scene.clock.advance(1)
    assert not scene.admits(3), "600 a minute for four processes are 2.5 a second for each"
    assert scene.admits(2)
    scene.clock.advance(10_000)
    assert not scene.admits(101)
    assert scene.admits(100)
    assert not scene.admits(1)


def test_what_a_rate_alone_gave_is_used_up_when_the_authority_answers_again() -> None:
    scene = Scene(tokens=40)
    scene.lose()
    scene.clock.advance(TERM_S)
    assert scene.admits(10)
    assert parts(scene.tokens) == (0, 0, 40)
    scene.hear(40, settled=40)
    assert not scene.leases.is_alone
    assert not scene.admits(10)
    scene.hear(45, settled=40)
    assert scene.admits(5)


def test_a_need_that_lacks_elsewhere_takes_nothing_of_a_rate_alone() -> None:
    scene = Scene(tokens=40)
    scene.lose()
    scene.clock.advance(TERM_S)
    rate_first = [Need(TOKENS, 30, RATE), Need(WALLET, 9999)]
    assert scene.leases.admit(rate_first) is None
    assert scene.admits(40)


def test_a_request_admitted_alone_touches_no_lease_at_its_end() -> None:
    scene = Scene(tokens=40)
    scene.lose()
    scene.clock.advance(TERM_S)
    hold = scene.leases.admit([Need(TOKENS, 30, RATE)])
    assert hold is not None
    scene.hear(8, epoch=2)
    scene.leases.consume(hold, TOKENS, total=20)
    scene.leases.settle(hold, {TOKENS: 25})
    assert parts(scene.tokens) == (8, 0, 0)


def test_a_rate_of_which_nothing_was_ever_lent_has_no_share() -> None:
    scene = Scene()
    scene.lose()
    scene.clock.advance(TERM_S)
    assert scene.leases.admit([Need(AllowanceId("alw_s"), 1, RATE)]) is None
    assert len(scene.leases) == 2, "and leaves nothing in memory"


def test_closed_rates_admit_nothing_alone() -> None:
    scene = Scene("closed")
    scene.lose()
    scene.clock.advance(TERM_S - 0.1)
    assert scene.admits(1), "its lease still lasts"
    scene.clock.advance(0.1)
    assert not scene.admits(1)


def test_open_rates_admit_all_alone_and_money_never_opens() -> None:
    scene = Scene("open")
    scene.lose()
    scene.clock.advance(TERM_S)
    for _ in range(20):
        assert scene.admits(RATE.burst)
    assert not scene.admits(RATE.burst + 1)
    assert not scene.admits(1, picos=981)
    assert (scene.wallet.free, scene.wallet.held) == (980, 20)


def test_what_stands_is_what_was_told_and_what_is_free_here() -> None:
    scene = Scene(tokens=40)
    assert scene.leases.standing(TOKENS) == (600, 100)
    assert scene.admits(15)
    assert scene.leases.standing(TOKENS) == (600, 85)
    assert scene.leases.standing(AllowanceId("alw_s")) is None
