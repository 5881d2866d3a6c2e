"""Burning: in order, nothing lost, never below zero, and the same whether replayed or continued."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import InvariantViolation
from app.core.ids import CorrectionId, GrantId, TransactionId, WalletId
from billing.ledger.burn import NOTHING, RETURNED, Burned, burn, rank_of
from billing.ledger.model import Grant, GrantKind, Move, MoveKind

DAWN = datetime(2026, 12, 1, tzinfo=UTC)
WALLET = WalletId("wal_one")


def grant(
    number: int, amount: int = 10, *, priority: int = 100, days: int | None = None, made: int = 0
) -> Grant:
    """Grant number `number`, made `made` hours after dawn; it ends `days` after dawn, or never."""
    return Grant(
        id=GrantId(f"grt_{number:03}"),
        wallet_id=WALLET,
        kind=GrantKind.PURCHASED,
        amount=amount,
        reason="",
        reference=str(number),
        transaction_id=TransactionId(f"txn_{number:03}"),
        created_by="mem_one",
        created_at=DAWN + timedelta(hours=made),
        priority=priority,
        starts_at=DAWN,
        expires_at=None if days is None else DAWN + timedelta(days=days),
    )


class Tale:
    """Moves as a wallet would number them, with what was spent before each."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.grants: dict[GrantId, Grant] = {}
        self.spent = 0

    def use(self, amount: int) -> Tale:
        self.spent += amount
        return self

    def start(self, *grants: Grant) -> Tale:
        for each in grants:
            self.grants[each.id] = each
            self._move(MoveKind.STARTED, each.amount, grant_id=each.id)
        return self

    def expire(self, grant_id: str, amount: int) -> Tale:
        return self._move(MoveKind.EXPIRED, -amount, grant_id=GrantId(grant_id))

    def correct(self, amount: int) -> Tale:
        kind = MoveKind.RETURNED if amount > 0 else MoveKind.CHARGED
        return self._move(kind, amount, grant_id=None)

    def told(self) -> Burned:
        return burn(self.moves, grants=self.grants, spent=self.spent)

    def _move(self, kind: MoveKind, amount: int, *, grant_id: GrantId | None) -> Tale:
        number = len(self.moves) + 1
        correction = None if grant_id else CorrectionId(f"cor_{number}")
        move = Move(
            WALLET, number, kind, grant_id, correction, amount, self.spent, DAWN, TransactionId(str(number))
        )
        self.moves.append(move)
        return self


def remaining(burned: Burned) -> dict[str, int]:
    return {name: pot.remaining for name, pot in burned.pots.items()}


def test_a_lower_priority_burns_first_then_what_ends_first_then_what_is_older() -> None:
    wanted = [
        grant(9, priority=0),
        grant(8, days=1),
        grant(7, days=2),
        grant(5, made=1),
        grant(6, made=2),
        grant(1, priority=101, days=1),
    ]
    for shuffled in (wanted[::-1], sorted(wanted, key=lambda each: each.id)):
        tale = Tale().start(*shuffled)
        for spent_before, each in enumerate(wanted):
            assert tale.told().pots[each.id].burned == 0
            burned = burn(tale.moves, grants=tale.grants, spent=10 * (spent_before + 1))
            assert burned.pots[each.id].remaining == 0
            tale.use(10)


def test_equal_grants_burn_in_the_order_of_their_ids() -> None:
    assert remaining(Tale().start(grant(2), grant(1)).use(10).told()) == {"grt_002": 10, "grt_001": 0}


def test_what_no_grant_covers_is_credit_that_the_next_one_repays() -> None:
    tale = Tale().use(7)
    assert tale.told().credit == 7
    told = tale.start(grant(1)).told()
    assert (told.credit, told.pots[GrantId("grt_001")].burned, told.remaining) == (0, 7, 3)


def test_a_grant_pays_nothing_that_was_used_before_it_started_and_covered_by_another() -> None:
    told = Tale().start(grant(1, days=9)).use(4).start(grant(2, priority=0)).use(1).told()
    assert remaining(told) == {"grt_001": 6, "grt_002": 9}


def test_what_expired_is_gone_and_later_use_finds_the_rest() -> None:
    told = Tale().start(grant(1, days=1), grant(2)).use(3).expire("grt_001", 5).use(4).told()
    assert remaining(told) == {"grt_001": 0, "grt_002": 8}
    assert told.pots[GrantId("grt_001")].expired == 5


def test_money_given_back_burns_last_and_money_charged_burns_like_use() -> None:
    tale = Tale().start(grant(1)).use(10).correct(4).start(grant(2, priority=1000)).use(12)
    assert remaining(tale.told()) == {"grt_001": 0, RETURNED: 2, "grt_002": 0}
    assert tale.correct(-2).told().remaining == 0


def test_money_given_back_repays_credit_first() -> None:
    told = Tale().use(5).correct(3).told()
    assert (told.credit, told.pots[RETURNED].burned, told.remaining) == (2, 3, 0)


def test_a_story_that_can_not_be_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="than remains"):
        Tale().start(grant(1)).use(8).expire("grt_001", 3).told()
    tale = Tale().use(5).start(grant(1))
    with pytest.raises(InvariantViolation, match="never falls"):
        burn(tale.moves, grants=tale.grants, spent=4)


@st.composite
def tales(draw: st.DrawFn) -> Tale:
    """Any story: grants of any order and end, use, corrections, and expiry of what remains then."""
    tale = Tale()
    for number in range(draw(st.integers(0, 25))):
        act = draw(st.sampled_from(["start", "use", "use", "expire", "return", "charge"]))
        amount = draw(st.integers(1, 10**30) | st.integers(1, 20))
        if act == "start":
            terms = draw(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 3), st.integers(0, 2)))
            tale.start(grant(number, amount, priority=terms[0], days=terms[1], made=terms[2]))
        elif act == "use":
            tale.use(amount)
        elif act == "expire":
            left = {name: pot.remaining for name, pot in tale.told().pots.items() if pot.remaining}
            left.pop(RETURNED, None)
            if left:
                name = draw(st.sampled_from(sorted(left)))
                tale.expire(name, draw(st.integers(1, left[name])))
        else:
            tale.correct(amount if act == "return" else -amount)
    return tale


@given(tales())
def test_nothing_is_lost_and_nothing_is_below_zero(tale: Tale) -> None:
    told = tale.told()
    for name, pot in told.pots.items():
        came = sum(
            move.amount for move in tale.moves if (move.grant_id or RETURNED) == name and move.amount > 0
        )
        assert pot.burned + pot.remaining + pot.expired == came
        assert min(pot.burned, pot.remaining, pot.expired) >= 0
    charged = -sum(move.amount for move in tale.moves if move.kind is MoveKind.CHARGED)
    assert sum(pot.burned for pot in told.pots.values()) + told.credit == tale.spent + charged
    assert told.credit >= 0
    assert not (told.credit and told.remaining)
    assert told.remaining - told.credit == sum(move.amount for move in tale.moves) - tale.spent


@given(tales(), st.randoms(use_true_random=False))
def test_the_order_in_which_the_moves_come_changes_nothing(tale: Tale, order: random.Random) -> None:
    shuffled = order.sample(tale.moves, len(tale.moves))
    assert burn(shuffled, grants=tale.grants, spent=tale.spent) == tale.told()


@given(tales(), st.data())
def test_continued_from_anywhere_it_is_what_a_replay_gives(tale: Tale, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tale.moves)))
    before, after = tale.moves[:cut], tale.moves[cut:]
    known = [move.spent for move in before[-1:]] or [0]
    mark = data.draw(st.integers(known[0], after[0].spent if after else tale.spent))
    halfway = burn(before, grants=tale.grants, spent=mark)
    assert burn(after, grants=tale.grants, spent=tale.spent, after=halfway) == tale.told()


@given(
    st.lists(st.builds(grant, st.integers(0, 99), st.integers(1, 50), priority=st.integers(0, 2)), max_size=6)
)
def test_grants_that_start_together_burn_alike_in_any_order_of_starting(grants: list[Grant]) -> None:
    unique = list({each.id: each for each in grants}.values())
    spent = sum(each.amount for each in unique) // 2
    one, other = Tale().start(*unique).use(spent), Tale().start(*unique[::-1]).use(spent)
    assert dict(one.told().pots) == dict(other.told().pots)


def test_nothing_is_the_beginning() -> None:
    assert burn([], grants={}, spent=0) == NOTHING
    assert rank_of(grant(1)) < rank_of(grant(2))
