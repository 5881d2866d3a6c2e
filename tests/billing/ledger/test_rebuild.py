"""Whatever happened, what stands is what is rebuilt from nothing; and what is spoiled is found and mended."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.core.errors import Conflict
from app.core.ids import RequestId
from billing.ledger import corrections, expiry, rebuild, service
from billing.ledger.corrections import Asked
from billing.ledger.model import BilledTokens, GrantKind, Terms
from billing.ledger.rebuild import Difference
from billing.metering.model import Usage
from tests.billing.journal.shop import Shop
from tests.billing.ledger.books import assert_books_are_one, buy

DAWN = datetime(2026, 12, 2, tzinfo=UTC)
PROJECTIONS = (
    "SELECT * FROM usage_rollup ORDER BY bucket, project_id, usage_source",
    "SELECT id, limit_amount, spent FROM allowance ORDER BY id",
)


class Chance:
    """A history of one wallet, drawn from a seed."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self.shop = shop
        self.draw = random.Random(seed)
        self.now = DAWN
        self.bought: list[RequestId] = []

    async def live(self, acts: int) -> None:
        for number in range(acts):
            self.now += timedelta(minutes=self.draw.randint(1, 90))
            act = self.draw.choice([self._buy, self._buy, self._grant, self._turn, self._correct])
            await act(number)

    async def _buy(self, number: int) -> None:
        usage = Usage(input=self.draw.randint(0, 900), output=self.draw.randint(0, 90))
        self.bought.append((await buy(self.shop, usage))[0])

    async def _grant(self, number: int) -> None:
        starts_at = self.draw.choice([None, self.now + timedelta(hours=2)])
        expires_at = self.draw.choice([None, self.now + timedelta(hours=self.draw.randint(3, 5))])
        async with self.shop.engine.begin() as connection:
            await service.grant(
                connection,
                wallet_id=self.shop.wallet.id,
                amount=self.draw.randint(1, 10**9),
                kind=self.draw.choice(list(GrantKind)),
                reason="chance",
                reference=str(number),
                created_by="mem_one",
                terms=Terms(self.draw.randint(0, 200), starts_at, expires_at),
                now=self.now,
            )

    async def _turn(self, number: int) -> None:
        async with self.shop.engine.begin() as connection:
            await expiry.turn(connection, self.shop.wallet.id, now=self.now)

    async def _correct(self, number: int) -> None:
        if not self.bought:
            return
        tokens = BilledTokens(billed_output=-self.draw.randint(0, 9))
        amount = None if tokens.billed_output else self.draw.randint(-1000, 1000)
        asked = Asked(self.draw.choice(self.bought), "chance", str(number), "mem_one", amount, tokens)
        async with self.shop.engine.begin() as connection:
            try:
                await corrections.correct(connection, asked, now=self.now)
            except Conflict:
                await connection.rollback()


async def compared(shop: Shop) -> list[Difference]:
    async with shop.engine.begin() as connection:
        return await rebuild.compare(connection)


async def projections(shop: Shop) -> list[list[Any]]:
    return [await shop.rows(query) for query in PROJECTIONS]


async def spoil(shop: Shop, *statements: str) -> None:
    """Do what the tables forbid, as a broken disk or a hand in the database might."""
    async with shop.owner.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def rebuilt(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        await rebuild.rebuild_rollups(connection)
        await rebuild.rebuild_allowances(connection)


@pytest.mark.parametrize("seed", range(3))
async def test_any_history_is_rebuilt_to_the_same_numbers(shop: Shop, seed: int) -> None:
    await Chance(shop, seed).live(25)
    assert await compared(shop) == []
    await assert_books_are_one(shop)
    before = await projections(shop)
    await spoil(shop, "DELETE FROM usage_rollup", "UPDATE allowance SET limit_amount = 1, spent = 2")
    found = {each.what for each in await compared(shop)}
    assert found >= {"limit", "spent", "rollup"}
    await rebuilt(shop)
    assert await projections(shop) == before
    assert await compared(shop) == []


async def test_a_correction_meanwhile_waits_for_a_rebuild_and_comes_on_top(shop: Shop) -> None:
    request_id, _ = await buy(shop)

    async def correct() -> None:
        async with shop.engine.begin() as connection:
            asked = Asked(request_id, "meanwhile", "one", "mem_one", 7)
            await corrections.correct(connection, asked, now=DAWN)

    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with shop.engine.begin() as connection:
        await rebuild.rebuild_rollups(connection)
        correcting = asyncio.create_task(correct())
        while await shop.rows(waiting) == [0]:
            await asyncio.sleep(0)
        await rebuild.rebuild_allowances(connection)
    await correcting
    assert await compared(shop) == []
    await assert_books_are_one(shop)


async def test_a_rollup_that_differs_is_told_with_both_numbers(shop: Shop) -> None:
    _, cost = await buy(shop)
    await spoil(shop, "UPDATE usage_rollup SET output = 91, cost = cost + 1")
    found = sorted(await compared(shop), key=lambda each: each.field)
    assert [(each.what, each.field, each.stands, each.rebuilt) for each in found] == [
        ("rollup", "cost", cost + 1, cost),
        ("rollup", "output", 91, 90),
    ]
    assert shop.catalogue.tenant_id in found[0].scope


async def test_grants_whose_story_can_not_be_are_told(shop: Shop) -> None:
    await buy(shop)
    await spoil(
        shop, "ALTER TABLE wallet_move DISABLE TRIGGER USER", "UPDATE wallet_move SET spent = 10 ^ 30"
    )
    assert [each.what for each in await compared(shop)] == ["grants"]


async def test_a_correction_that_moved_nothing_is_told(shop: Shop) -> None:
    request_id, _ = await buy(shop)
    async with shop.engine.begin() as connection:
        asked = Asked(request_id, "twice", "one", "mem_one", 7)
        await corrections.correct(connection, asked, now=DAWN)
    await spoil(
        shop,
        "ALTER TABLE wallet_move DISABLE TRIGGER USER",
        "DELETE FROM wallet_move WHERE correction_id IS NOT NULL",
        "UPDATE allowance SET limit_amount = limit_amount - 7",
    )
    found = {(each.what, each.stands, each.rebuilt) for each in await compared(shop)}
    assert ("corrections", 0, 7) in found
    assert "balance" in {what for what, _, _ in found}
