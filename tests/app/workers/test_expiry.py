"""The worker's turn of grants: by its clock, wallet by wallet, and one bad wallet holds up no other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import text

from app.core import ids
from app.core.clock import from_ms
from app.workers.expiry import turn_grants
from billing.ledger import service
from billing.ledger.expiry import Turned
from billing.ledger.model import Terms
from tests.billing.journal.shop import DEPOSIT, Shop, open_shop
from tests.database import Database


async def give(shop: Shop, *, starts_in: timedelta | None, lasts: timedelta) -> None:
    now = from_ms(shop.clock.now_ms())
    async with shop.engine.begin() as connection:
        await service.grant(
            connection,
            wallet_id=shop.wallet.id,
            amount=50,
            kind="purchased",
            reason="order",
            reference=str(starts_in),
            created_by="mem_one",
            terms=Terms(100, None if starts_in is None else now + starts_in, now + lasts),
            now=now,
        )


async def turned(shop: Shop) -> Turned:
    return await asyncio.to_thread(turn_grants, shop.database.app_url, clock=shop.clock)


async def test_grants_turn_when_the_clock_says_so(database: Database) -> None:
    async with open_shop(database) as shop:
        await give(shop, starts_in=timedelta(hours=1), lasts=timedelta(hours=2))
        assert await turned(shop) == Turned()
        shop.clock.advance(3600)
        assert await turned(shop) == Turned(started=1)
        assert (await shop.balance()).posted == DEPOSIT + 50
        shop.clock.advance(3600)
        assert await turned(shop) == Turned(expired=50, ended=1)
        assert await turned(shop) == Turned()
        assert (await shop.balance()).posted == DEPOSIT


async def test_a_wallet_that_can_not_be_turned_holds_up_no_other(database: Database) -> None:
    async with open_shop(database) as shop:
        await give(shop, starts_in=None, lasts=timedelta(hours=1))
        tenant_id = ids.tenant_id()
        async with shop.owner.begin() as connection:
            new = "INSERT INTO tenant (id, name, currency) VALUES (:id, 'Broken', 'USD')"
            await connection.execute(text(new), {"id": tenant_id})
        async with shop.engine.begin() as connection:
            broken = await service.open_wallet(connection, tenant_id=tenant_id, currency="USD")
            await service.grant(
                connection,
                wallet_id=broken.id,
                amount=9,
                kind="promo",
                reason="gift",
                reference="one",
                created_by="mem_one",
                terms=Terms(expires_at=from_ms(shop.clock.now_ms()) + timedelta(hours=1)),
                now=from_ms(shop.clock.now_ms()),
            )
        async with shop.owner.begin() as connection:
            spoil = "UPDATE allowance SET spent = 10, limit_amount = 19 WHERE tenant_id = :id"
            await connection.execute(text(spoil), {"id": tenant_id})
            unwritable = "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            unwritable += "RAISE EXCEPTION 'never'; END $$"
            await connection.execute(text(unwritable))
            trigger = "CREATE TRIGGER never BEFORE INSERT ON wallet_move FOR EACH ROW "
            trigger += f"WHEN (NEW.wallet_id = '{broken.id}') EXECUTE FUNCTION never()"
            await connection.execute(text(trigger))
        shop.clock.advance(3600)
        assert await turned(shop) == Turned(expired=50, ended=1)
