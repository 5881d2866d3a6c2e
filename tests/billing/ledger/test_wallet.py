"""A wallet: opened once, filled once per reference, told exactly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core import ids
from app.core.errors import Conflict, Rejected
from billing.journal.settler import Settler
from billing.ledger import proofs, service
from billing.ledger.model import Balance, Grant, GrantKind
from tests.billing.journal import journals
from tests.billing.journal.shop import DEPOSIT, Shop, settled


async def give(shop: Shop, amount: int, *, reference: str = "second", kind: str = "promo") -> Grant:
    async with shop.engine.begin() as connection:
        return await service.grant(
            connection,
            wallet_id=shop.wallet.id,
            amount=amount,
            kind=kind,
            reason="welcome",
            reference=reference,
            created_by="mem_one",
        )


async def test_a_fresh_wallet_is_empty_and_has_its_credit(shop: Shop) -> None:
    tenant_id = ids.tenant_id()
    async with shop.owner.begin() as connection:
        await connection.execute(
            text("INSERT INTO tenant (id, name, currency) VALUES (:id, 'B', 'CNY')"), {"id": tenant_id}
        )
    async with shop.engine.begin() as connection:
        wallet = await service.open_wallet(connection, tenant_id=tenant_id, currency="CNY", credit_limit=5)
        assert await service.balance(connection, wallet.id) == Balance(0, 0, 5, 5, "CNY")
        assert await service.find_wallet_of(connection, tenant_id) == wallet
        assert await service.find_wallet(connection, wallet.id) == wallet


async def test_a_tenant_has_one_wallet(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        with pytest.raises(Conflict):
            await service.open_wallet(connection, tenant_id=shop.catalogue.tenant_id, currency="USD")


async def test_a_grant_moves_its_amount_and_is_listed(shop: Shop) -> None:
    grant = await give(shop, 7)
    assert (await shop.balance()).posted == DEPOSIT + 7
    async with shop.engine.begin() as connection:
        grants = await service.list_grants(connection, shop.wallet.id, after=None, limit=10)
        assert [each.amount for each in grants] == [DEPOSIT, 7]
        assert await service.list_grants(connection, shop.wallet.id, after=grants[0].id, limit=10) == [grant]
    query = (
        "SELECT a.kind, sum(n.amount)::bigint FROM ledger_entry n "
        "JOIN ledger_account a ON a.id = n.account_id GROUP BY 1 ORDER BY 1"
    )
    assert await shop.rows(query) == [("cash", -DEPOSIT), ("promo", -7), ("wallet", DEPOSIT + 7)]
    await shop.assert_the_books_agree()


async def test_the_same_reference_is_the_same_grant(shop: Shop) -> None:
    first = await give(shop, 7)
    assert await give(shop, 7) == first
    assert (await shop.balance()).posted == DEPOSIT + 7


@pytest.mark.parametrize(("amount", "kind"), [(8, "promo"), (7, "purchased")])
async def test_the_same_reference_for_something_else_is_a_conflict(
    shop: Shop, amount: int, kind: str
) -> None:
    await give(shop, 7)
    with pytest.raises(Conflict):
        await give(shop, amount, kind=kind)
    assert (await shop.balance()).posted == DEPOSIT + 7


async def test_one_grant_comes_of_many_simultaneous_tries(shop: Shop) -> None:
    grants = await asyncio.gather(*(give(shop, 7) for _ in range(8)))
    assert len({grant.id for grant in grants}) == 1
    assert (await shop.balance()).posted == DEPOSIT + 7
    await shop.assert_the_books_agree()


@pytest.mark.parametrize("amount", [0, -1])
async def test_a_grant_is_more_than_nothing(shop: Shop, amount: int) -> None:
    with pytest.raises(ValueError, match="more than nothing"):
        await give(shop, amount)


async def test_an_unknown_wallet_is_not_found(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        with pytest.raises(Rejected):
            await service.balance(connection, ids.wallet_id())


async def test_credit_raises_what_is_available_and_not_what_is_posted(shop: Shop) -> None:
    for credit in (500, 20):
        async with shop.engine.begin() as connection:
            await service.set_credit_limit(connection, shop.wallet.id, credit_limit=credit)
        assert await shop.balance() == Balance(DEPOSIT, 0, DEPOSIT + credit, credit, "USD")
    await shop.assert_the_books_agree()


async def test_a_grant_and_a_settlement_at_once_do_not_wait_for_each_other(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    charges = [shop.catalogue.admitted() for _ in range(40)]
    records = [record for admitted in charges for record in (admitted, settled(admitted))]
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock, batch=2)
    gifts = [give(shop, 1, reference=f"gift {number}") for number in range(20)]
    posted, *_ = await asyncio.gather(settler.look(), *gifts)
    assert posted == 40
    spent = 40 * settled(charges[0]).cost_picos
    assert (await shop.balance()).posted == DEPOSIT + 20 - spent
    await shop.assert_the_books_agree()


@pytest.mark.parametrize("table", ["allowance", "wallet"])
async def test_a_balance_that_drifts_from_grants_and_events_is_found(shop: Shop, table: str) -> None:
    column = "limit_amount" if table == "allowance" else "credit_limit"
    async with shop.owner.begin() as connection:
        await connection.execute(text(f"UPDATE {table} SET {column} = {column} + 1"))
        [drift] = await proofs.drifts(connection)
    sign = 1 if table == "allowance" else -1
    assert (drift.by_grants_and_events, drift.by_ledger, drift.by_allowance) == (
        DEPOSIT,
        DEPOSIT,
        DEPOSIT + sign,
    )


def test_a_purchase_is_debited_to_cash_and_a_gift_to_promotion() -> None:
    assert (GrantKind.PURCHASED.source.value, GrantKind.PROMO.source.value) == ("cash", "promo")
