"""A correction is a row of its own that ledger, roll-ups, wallet and allowance agree on; events stand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.errors import Conflict, Rejected
from app.core.ids import RequestId
from billing.ledger import corrections, expiry, rebuild, service
from billing.ledger.corrections import Asked
from billing.ledger.model import BilledTokens, Correction, Terms
from tests.billing.journal.shop import DEPOSIT, RATES, Shop
from tests.billing.ledger.books import assert_books_are_one, buy

NOW = datetime(2026, 12, 1, 9, 20, tzinfo=UTC)


def asked(request_id: RequestId, amount: int | None = None, **facts: Any) -> Asked:
    values = {"reason": "counted twice", "reference": "ticket 7", "created_by": "mem_one", **facts}
    return Asked(request_id=request_id, amount=amount, **values)


async def correct(shop: Shop, wanted: Asked) -> Correction:
    async with shop.engine.begin() as connection:
        return await corrections.correct(connection, wanted, now=NOW)


async def test_money_given_back_is_in_wallet_ledger_and_rollup_and_the_event_stands(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    before = await shop.rows("SELECT * FROM usage_event")
    made = await correct(shop, asked(request_id, 100))
    assert (await shop.balance()).posted == DEPOSIT - cost + 100
    assert await shop.rows("SELECT * FROM usage_event") == before
    entries = (
        "SELECT a.kind, n.amount::bigint FROM ledger_entry n JOIN ledger_account a ON a.id = n.account_id "
        "WHERE n.transaction_id = :id ORDER BY 1"
    )
    assert await shop.rows(entries, id=made.transaction_id) == [("revenue", -100), ("wallet", 100)]
    rollups = "SELECT bucket, requests, cost::bigint FROM usage_rollup WHERE usage_source = 'correction'"
    assert await shop.rows(rollups) == [(NOW - timedelta(minutes=5), 0, -100)]
    await assert_books_are_one(shop)


async def test_what_is_spent_stays_and_the_limit_rises(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    await correct(shop, asked(request_id, 100))
    limits = "SELECT limit_amount::text, spent::text FROM allowance"
    assert await shop.rows(limits) == [(str(DEPOSIT + 100), str(cost))]


async def test_a_correction_by_tokens_is_worth_them_at_the_rates_of_the_event(shop: Shop) -> None:
    request_id, _ = await buy(shop)
    made = await correct(shop, asked(request_id, tokens=BilledTokens(billed_output=-10, billed_input=4)))
    assert made.amount == 10 * RATES.output - 4 * RATES.input
    sums = "SELECT sum(billed_output)::bigint, sum(billed_input)::bigint FROM usage_rollup"
    assert await shop.rows(sums) == [(80, 704)]
    await assert_books_are_one(shop)


async def test_the_same_reference_is_the_same_correction(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    first = await correct(shop, asked(request_id, 100))
    assert await correct(shop, asked(request_id, 100)) == first
    for other in (asked(request_id, 101), asked((await buy(shop))[0], 100)):
        with pytest.raises(Conflict, match="another correction"):
            await correct(shop, other)
    assert (await shop.balance()).posted == DEPOSIT - 2 * cost + 100


async def test_no_more_is_given_back_than_the_request_cost_however_many_try(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    tries = [correct(shop, asked(request_id, cost // 3, reference=f"try {n}")) for n in range(8)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, Correction) for each in done) == 3
    assert all(isinstance(each, Correction | Conflict) for each in done)
    await assert_books_are_one(shop)


async def test_a_charge_goes_up_to_what_the_request_was_held_for(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    [hold] = await shop.rows("SELECT hold::bigint FROM usage_event")
    most = (hold - cost) // RATES.output
    charged = await correct(shop, asked(request_id, tokens=BilledTokens(billed_output=most), reference="a"))
    assert charged.amount == -most * RATES.output
    assert (await shop.balance()).posted == DEPOSIT - cost + charged.amount
    with pytest.raises(Conflict, match="what was held"):
        await correct(shop, asked(request_id, tokens=BilledTokens(billed_output=1), reference="b"))
    await assert_books_are_one(shop)


async def test_a_charge_goes_by_tokens_but_for_what_was_given_back(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    with pytest.raises(Conflict, match="goes by tokens"):
        await correct(shop, asked(request_id, -1, reference="a"))
    await correct(shop, asked(request_id, 100, reference="b"))
    await correct(shop, asked(request_id, -60, reference="c"))
    with pytest.raises(Conflict, match="goes by tokens"):
        await correct(shop, asked(request_id, -41, reference="d"))
    assert (await shop.balance()).posted == DEPOSIT - cost + 40
    await assert_books_are_one(shop)


async def test_no_more_is_charged_than_is_neither_spent_nor_lent(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    await shop.incarnation(lent=DEPOSIT - cost)
    with pytest.raises(Conflict, match="available"):
        await correct(shop, asked(request_id, tokens=BilledTokens(billed_output=1)))
    await assert_books_are_one(shop)


async def test_a_class_never_falls_below_no_tokens(shop: Shop) -> None:
    request_id, _ = await buy(shop)
    with pytest.raises(Conflict, match="no fewer"):
        await correct(shop, asked(request_id, tokens=BilledTokens(billed_input=-701, billed_output=1)))


@pytest.mark.parametrize("amount", [0, None])
async def test_a_correction_of_nothing_is_none(shop: Shop, amount: int | None) -> None:
    request_id, _ = await buy(shop)
    with pytest.raises(Conflict, match="something"):
        await correct(shop, asked(request_id, amount))


async def test_an_amount_that_its_tokens_are_not_worth_is_refused(shop: Shop) -> None:
    request_id, _ = await buy(shop)
    with pytest.raises(Conflict, match="rates"):
        await correct(shop, asked(request_id, 1, tokens=BilledTokens(billed_output=-10)))


async def test_a_request_without_an_event_is_not_found(shop: Shop) -> None:
    with pytest.raises(Rejected, match="no settled request"):
        await correct(shop, asked(ids.request_id(), 1))


async def test_corrections_are_listed_newest_first_within_reach(shop: Shop) -> None:
    request_id, _ = await buy(shop)
    made = [await correct(shop, asked(request_id, 1, reference=str(n))) for n in range(3)]
    async with shop.engine.begin() as connection:
        tenant_id = shop.catalogue.tenant_id
        listed = await corrections.list_corrections(connection, tenant_id=tenant_id, limit=2)
        assert listed == made[:0:-1]
        rest = await corrections.list_corrections(
            connection, tenant_id=None, request_id=request_id, before=listed[-1].id, limit=9
        )
        assert rest == made[:1]
        assert await corrections.list_corrections(connection, tenant_id=ids.tenant_id(), limit=9) == []


async def test_money_given_back_pays_the_next_requests_after_all_grants(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    await correct(shop, asked(request_id, cost))
    async with shop.engine.begin() as connection:
        told = await service.standing(connection, shop.wallet.id, now=NOW)
    assert (told.returned, told.credit) == (cost, 0)
    assert [each.remaining for each in told.grants] == [DEPOSIT - cost]


async def test_corrections_grants_turns_and_settlements_at_once_do_not_wait_for_each_other(
    shop: Shop,
) -> None:
    bought = [await buy(shop) for _ in range(4)]

    async def give(number: int) -> None:
        async with shop.engine.begin() as connection:
            await service.grant(
                connection,
                wallet_id=shop.wallet.id,
                amount=10**9,
                kind="promo",
                reason="gift",
                reference=str(number),
                created_by="mem_one",
                terms=Terms(expires_at=NOW + timedelta(days=1)),
                now=NOW,
            )

    async def turn() -> None:
        async with shop.engine.begin() as connection:
            await expiry.turn(connection, shop.wallet.id, now=NOW + timedelta(days=1))

    corrected = [
        correct(shop, asked(request_id, 10 + number, reference=f"{request_id} {number}"))
        for request_id, _ in bought
        for number in range(3)
    ]
    gifts, turns = [give(number) for number in range(6)], [turn() for _ in range(6)]
    await asyncio.gather(*corrected, *gifts, *turns, *(buy(shop) for _ in range(8)))
    await assert_books_are_one(shop)
    async with shop.engine.begin() as connection:
        assert await rebuild.compare(connection) == []


class TestTheDatabaseItself:
    """Whatever a program tries, the tables refuse it: as the owner, too."""

    INSERT = (
        "INSERT INTO usage_correction (id, request_id, tenant_id, amount, currency, billed_output, reason, "
        "reference, created_by, at, transaction_id) SELECT 'cor_x', request_id, :tenant, :amount, :currency, "
        ":output, 'r', 'r', 'me', now(), transaction_id FROM usage_event"
    )

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"amount": 2}, "net cost of -1"),
            ({"amount": -(10**12)}, "net cost of"),
            ({"amount": 5, "output": -1}, "not worth its tokens"),
            ({"currency": "EUR"}, "tenant and currency"),
        ],
    )
    async def test_refuses_what_does_not_fit_the_event(
        self, shop: Shop, changes: dict[str, Any], words: str
    ) -> None:
        _, cost = await buy(shop)
        values = {"tenant": shop.catalogue.tenant_id, "amount": 1, "currency": "USD", "output": 0, **changes}
        if values["amount"] == 2:
            values["amount"] = cost + 1
        with pytest.raises(IntegrityError, match=words):
            async with shop.owner.begin() as connection:
                await connection.execute(text(self.INSERT), values)

    @pytest.mark.parametrize("table", ["usage_correction", "wallet_move"])
    async def test_lets_history_stand(self, shop: Shop, table: str) -> None:
        request_id, _ = await buy(shop)
        await correct(shop, asked(request_id, 1))
        for change in (f"UPDATE {table} SET amount = amount", f"DELETE FROM {table}", f"TRUNCATE {table}"):
            await refused(shop.owner, change, words="history stands|referenced")
            await refused(shop.engine, change, words="permission denied")


async def refused(engine: AsyncEngine, statement: str, *, words: str) -> None:
    with pytest.raises(DBAPIError, match=words):
        async with engine.begin() as connection:
            await connection.execute(text(statement))
