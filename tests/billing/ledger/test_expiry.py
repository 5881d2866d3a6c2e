"""Grants start and expire at their moment, take nothing that is lent, and do it once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import IncarnationId
from billing.ledger import expiry, service
from billing.ledger.expiry import Turned
from billing.ledger.model import Grant, GrantKind, Terms
from billing.ledger.standing import GrantStanding, GrantState
from tests.billing.journal.shop import DEPOSIT, Shop
from tests.billing.ledger.books import assert_books_are_one, buy

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
DAY, HOUR, INSTANT = timedelta(days=1), timedelta(hours=1), timedelta(microseconds=1)
ACCOUNTS = (
    "SELECT a.kind, sum(n.amount)::bigint FROM ledger_entry n JOIN ledger_account a ON a.id = n.account_id "
    "GROUP BY 1 HAVING sum(n.amount) <> 0 ORDER BY 1"
)


async def give(
    shop: Shop,
    amount: int,
    *,
    reference: str = "more",
    kind: GrantKind = GrantKind.PURCHASED,
    starts_at: datetime | None = None,
    expires_at: datetime | None = None,
    priority: int = 100,
) -> Grant:
    async with shop.engine.begin() as connection:
        return await service.grant(
            connection,
            wallet_id=shop.wallet.id,
            amount=amount,
            kind=kind,
            reason="order",
            reference=reference,
            created_by="mem_one",
            terms=Terms(priority, starts_at, expires_at),
            now=NOON,
        )


async def turn(shop: Shop, at: datetime) -> Turned:
    async with shop.engine.begin() as connection:
        return await expiry.turn(connection, shop.wallet.id, now=at)


async def due(shop: Shop, at: datetime) -> bool:
    async with shop.engine.begin() as connection:
        return await expiry.find_due(connection, now=at) == [shop.wallet.id]


async def standing(shop: Shop, grant: Grant, at: datetime) -> GrantStanding:
    async with shop.engine.begin() as connection:
        listed = await service.list_standing_grants(connection, shop.wallet.id, after=None, limit=500, now=at)
    return next(each for each in listed if each.id == grant.id)


async def give_back(shop: Shop, incarnation_id: IncarnationId) -> None:
    """All that is lent to a process comes back."""
    statement = "UPDATE lease SET returned = granted - settled WHERE incarnation_id = :id"
    async with shop.owner.begin() as connection:
        await connection.execute(text(statement), {"id": incarnation_id})


async def test_a_grant_before_its_start_is_owed_and_limits_nothing(shop: Shop) -> None:
    await give(shop, 50, starts_at=NOON + DAY)
    assert (await shop.balance()).available == DEPOSIT
    assert await shop.rows(ACCOUNTS) == [("accrued", 50), ("cash", -DEPOSIT - 50), ("wallet", DEPOSIT)]
    await assert_books_are_one(shop)


async def test_the_start_is_included(shop: Shop) -> None:
    granted = await give(shop, 50, starts_at=NOON + DAY)
    assert await turn(shop, NOON + DAY - INSTANT) == Turned()
    assert not await due(shop, NOON + DAY - INSTANT)
    assert (await standing(shop, granted, NOON)).state is GrantState.WAITING
    assert await due(shop, NOON + DAY)
    assert await turn(shop, NOON + DAY) == Turned(started=1)
    assert (await shop.balance()).available == DEPOSIT + 50
    assert await shop.rows(ACCOUNTS) == [("cash", -DEPOSIT - 50), ("wallet", DEPOSIT + 50)]
    assert (await standing(shop, granted, NOON + DAY)).state is GrantState.ACTIVE
    await assert_books_are_one(shop)


@pytest.mark.parametrize(("kind", "heir"), [(GrantKind.PURCHASED, "breakage"), (GrantKind.PROMO, "promo")])
async def test_the_end_is_excluded_and_the_rest_leaves_for_its_account(
    shop: Shop, kind: GrantKind, heir: str
) -> None:
    granted = await give(shop, 10**9, kind=kind, expires_at=NOON + DAY)
    _, cost = await buy(shop)
    assert await turn(shop, NOON + DAY - INSTANT) == Turned()
    assert await turn(shop, NOON + DAY) == Turned(expired=10**9 - cost, ended=1)
    assert (await shop.balance()).posted == DEPOSIT
    account = "SELECT kind FROM ledger_account WHERE id IN (SELECT account_id FROM ledger_entry e JOIN "
    account += "ledger_transaction t ON t.id = e.transaction_id WHERE t.kind = 'expiry') ORDER BY 1"
    assert await shop.rows(account) == sorted([heir, "wallet"])
    told = await standing(shop, granted, NOON + DAY)
    assert (told.state, told.burned, told.expired) == (GrantState.EXPIRED, cost, 10**9 - cost)
    await assert_books_are_one(shop)


async def test_a_gift_that_expires_is_as_if_never_given(shop: Shop) -> None:
    await give(shop, 70, kind=GrantKind.PROMO, expires_at=NOON + DAY)
    await turn(shop, NOON + DAY)
    assert await shop.rows(ACCOUNTS) == [("cash", -DEPOSIT), ("wallet", DEPOSIT)]


async def test_a_second_turn_does_nothing_more(shop: Shop) -> None:
    await give(shop, 50, starts_at=NOON + HOUR, expires_at=NOON + DAY)
    assert await turn(shop, NOON + DAY) == Turned(started=1, expired=50, ended=1)
    assert not await due(shop, NOON + DAY)
    assert await turn(shop, NOON + 2 * DAY) == Turned()


async def test_a_grant_that_started_and_ended_since_the_last_turn_may_be_more_than_the_wallet_has(
    shop: Shop,
) -> None:
    await give(shop, 3 * DEPOSIT, starts_at=NOON + HOUR, expires_at=NOON + DAY)
    await give(shop, 50, reference="later", starts_at=NOON + HOUR)
    assert await turn(shop, NOON + 2 * DAY) == Turned(started=2, expired=3 * DEPOSIT, ended=1)
    assert (await shop.balance()).available == DEPOSIT + 50
    assert not await due(shop, NOON + 2 * DAY)
    await assert_books_are_one(shop)


async def test_many_turns_at_once_are_one(shop: Shop) -> None:
    await give(shop, 50, reference="a", starts_at=NOON + HOUR)
    await give(shop, 60, reference="b", expires_at=NOON + HOUR)
    turns = await asyncio.gather(*(turn(shop, NOON + HOUR) for _ in range(6)))
    assert sorted(turns, key=lambda each: each.started)[-1] == Turned(started=1, expired=60, ended=1)
    assert turns.count(Turned()) == 5
    assert (await shop.balance()).posted == DEPOSIT + 50
    await assert_books_are_one(shop)


async def test_a_turn_that_dies_before_its_commit_leaves_nothing_and_is_made_up_for(shop: Shop) -> None:
    await give(shop, 50, expires_at=NOON + DAY)
    connection = await shop.engine.connect()
    await expiry.turn(connection, shop.wallet.id, now=NOON + DAY)
    await connection.invalidate()
    await connection.close()
    assert (await shop.balance()).posted == DEPOSIT + 50
    assert await turn(shop, NOON + DAY) == Turned(expired=50, ended=1)


async def test_what_is_lent_stays_usable_and_expires_once_it_is_back(shop: Shop) -> None:
    granted = await give(shop, 10**9, expires_at=NOON + DAY)
    borrower = await shop.incarnation(lent=7 * 10**8)
    assert await turn(shop, NOON + DAY) == Turned(expired=3 * 10**8, lingering=1)
    assert (await standing(shop, granted, NOON + DAY)).state is GrantState.LINGERING
    assert (await shop.rows("SELECT recall_until > now() FROM allowance")) == [True]
    _, cost = await buy(shop, incarnation_id=borrower)
    assert (await standing(shop, granted, NOON + DAY)).burned == cost
    await give_back(shop, borrower)
    assert await turn(shop, NOON + DAY + HOUR) == Turned(expired=7 * 10**8 - cost, ended=1)
    assert (await shop.balance()).posted == DEPOSIT
    references = "SELECT ref_id FROM ledger_transaction WHERE kind = 'expiry' ORDER BY 1"
    assert await shop.rows(references) == [f"{granted.id}:1", f"{granted.id}:2"]
    await assert_books_are_one(shop)


async def test_what_is_lent_is_of_the_grant_that_burns_first(shop: Shop) -> None:
    """Else a tenant would lose of the expired grant what the hold needs, and the hold would burn another."""
    first = await give(shop, 100, reference="a", expires_at=NOON + DAY)
    second = await give(shop, 100, reference="b", expires_at=NOON + 2 * DAY)
    await shop.incarnation(lent=130)
    assert await turn(shop, NOON + DAY) == Turned(lingering=1)
    assert (await standing(shop, first, NOON + DAY)).remaining == 100
    assert await turn(shop, NOON + 2 * DAY) == Turned(expired=70, lingering=2)
    assert (await standing(shop, second, NOON + 2 * DAY)).remaining == 30
    await assert_books_are_one(shop)


async def test_a_grant_that_is_used_up_ends_without_an_entry(shop: Shop) -> None:
    granted = await give(shop, 1000, expires_at=NOON + DAY)
    await buy(shop)
    assert await turn(shop, NOON + DAY) == Turned(ended=1)
    assert (await standing(shop, granted, NOON + DAY)).state is GrantState.USED_UP
    assert not await due(shop, NOON + 9 * DAY)


async def test_turns_settlements_and_leases_at_once_never_exceed_the_limit(shop: Shop) -> None:
    for number in range(4):
        await give(shop, 10**9, reference=str(number), expires_at=NOON + DAY + number * HOUR)
    lend = text("SELECT quota_ask(:id, 1, ARRAY[0], ARRAY[:allowance], ARRAY[CAST(:amount AS numeric)])")

    async def borrow(amount: int) -> None:
        borrower = await shop.incarnation(lent=0)
        async with shop.engine.begin() as connection:
            locks = "SELECT FROM allowance WHERE id = :allowance FOR UPDATE"
            values = {"allowance": shop.wallet.allowance_id}
            await connection.execute(text(locks), values)
            await connection.execute(lend, {**values, "id": borrower, "amount": amount})

    acts = [buy(shop) for _ in range(10)]
    turns = [turn(shop, NOON + DAY + number * HOUR) for number in range(4) for _ in range(2)]
    loans = [borrow(DEPOSIT // 9) for _ in range(12)]
    await asyncio.gather(*acts, *turns, *loans)
    await assert_books_are_one(shop)
    assert (await shop.balance()).available >= 0


async def test_a_grant_that_could_never_be_used_is_refused(shop: Shop) -> None:
    for starts_at, expires_at in ((None, NOON), (NOON + DAY, NOON + DAY), (NOON - DAY, NOON - HOUR)):
        with pytest.raises(Conflict, match="expires"):
            await give(shop, 5, starts_at=starts_at, expires_at=expires_at)


async def test_the_same_reference_with_other_terms_is_a_conflict(shop: Shop) -> None:
    first = await give(shop, 5, starts_at=NOON + HOUR)
    await turn(shop, NOON + HOUR)
    assert await give(shop, 5, starts_at=NOON + HOUR) == first == await give(shop, 5)
    for changes in ({"priority": 7}, {"expires_at": NOON + DAY}, {"starts_at": NOON + DAY}):
        with pytest.raises(Conflict, match="other terms"):
            await give(shop, 5, **changes)


async def test_a_wallet_tells_what_expires_next_and_when(shop: Shop) -> None:
    await give(shop, 5, reference="a", expires_at=NOON + 2 * DAY)
    await give(shop, 7, reference="b", expires_at=NOON + DAY)
    await give(shop, 8, reference="c", expires_at=NOON + DAY)
    async with shop.engine.begin() as connection:
        told = await service.standing(connection, shop.wallet.id, now=NOON)
        later = await service.standing(connection, shop.wallet.id, now=NOON + 9 * DAY)
    assert told.expires_next is not None
    assert (told.expires_next.at, told.expires_next.amount) == (NOON + DAY, 15)
    assert [each.remaining for each in told.grants] == [7, 8, 5, DEPOSIT]
    assert later.expires_next is None


class TestTheDatabaseItself:
    """A move that does not fit is refused, whoever makes it."""

    MOVE = (
        "INSERT INTO wallet_move (wallet_id, number, kind, grant_id, amount, spent, at, transaction_id) "
        "SELECT wallet_id, :number, :kind, id, :amount, :spent, :at, :transaction FROM wallet_grant "
        "WHERE reference = 'more'"
    )

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"number": 4}, "does not follow"),
            ({"spent": 1}, "what is spent"),
            ({"kind": "expired", "amount": -51}, "what its grant allows"),
            ({"kind": "expired", "amount": -2 * DEPOSIT}, "spent or lent"),
            ({"kind": "expired", "amount": -5}, "what the ledger says"),
            ({"kind": "started", "amount": 51}, "what its grant allows"),
            ({"amount": 5}, "wallet_move_check"),
        ],
    )
    async def test_refuses_a_move_that_does_not_fit(
        self, shop: Shop, changes: dict[str, object], words: str
    ) -> None:
        await give(shop, 50, expires_at=NOON + timedelta(minutes=1))
        values = {
            "number": 3,
            "at": NOON + DAY,
            "kind": "ended",
            "amount": 0,
            "spent": 0,
            "transaction": None if changes.get("kind") in (None, "ended") else ids.transaction_id(),
            **changes,
        }
        for engine in (shop.owner, shop.engine):
            with pytest.raises(IntegrityError, match=words):
                async with engine.begin() as connection:
                    await connection.execute(text(self.MOVE), values)
