"""The ledger balances or refuses; a reference is posted once; history stands."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.errors import Conflict, InvariantViolation
from app.core.ids import TenantId
from billing.ledger import posting, service
from billing.ledger.model import AccountKind, Reference, Transaction
from tests.billing.journal.shop import Shop

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def transaction(
    tenant_id: TenantId, entries: dict[AccountKind, int], *, reference: str = "one", currency: str = "USD"
) -> Transaction:
    return Transaction(
        id=ids.transaction_id(),
        reference=Reference("adjustment", "test", reference),
        tenant_id=tenant_id,
        currency=currency,
        at=NOW,
        entries=entries,
    )


FAIR = {AccountKind.WALLET: -(10**30), AccountKind.REVENUE: 10**30}


async def test_a_balanced_transaction_is_posted_exactly(shop: Shop) -> None:
    posted = transaction(shop.catalogue.tenant_id, FAIR)
    async with shop.engine.begin() as connection:
        assert await posting.post(connection, [posted]) == {"one": posted.id}
        assert await service.trial_balance(connection) == {"USD": 0}
    query = (
        "SELECT a.kind, n.amount FROM ledger_entry n JOIN ledger_account a ON a.id = n.account_id "
        "WHERE n.transaction_id = :id ORDER BY 1"
    )
    assert await shop.rows(query, id=posted.id) == [("revenue", 10**30), ("wallet", -(10**30))]


async def test_the_same_reference_again_changes_nothing_and_names_the_first(shop: Shop) -> None:
    first, again = (transaction(shop.catalogue.tenant_id, FAIR) for _ in range(2))
    async with shop.engine.begin() as connection:
        await posting.post(connection, [first])
        assert await posting.post(connection, [again]) == {"one": first.id}
    assert await shop.rows("SELECT count(*) FROM ledger_transaction WHERE ref_type = 'test'") == [1]


@pytest.mark.parametrize(
    "other",
    [
        {AccountKind.WALLET: -1, AccountKind.REVENUE: 1},
        {AccountKind.PROMO: -(10**30), AccountKind.REVENUE: 10**30},
    ],
)
async def test_the_same_reference_with_other_amounts_is_a_conflict(
    shop: Shop, other: dict[AccountKind, int]
) -> None:
    async with shop.engine.begin() as connection:
        await posting.post(connection, [transaction(shop.catalogue.tenant_id, FAIR)])
        with pytest.raises(Conflict):
            await posting.post(connection, [transaction(shop.catalogue.tenant_id, other)])


@pytest.mark.parametrize(
    "entries",
    [
        {AccountKind.WALLET: -1, AccountKind.REVENUE: 2},
        {AccountKind.WALLET: 0, AccountKind.REVENUE: 0},
        {AccountKind.WALLET: 1},
        {},
    ],
)
async def test_an_unbalanced_transaction_breaks_an_invariant(
    shop: Shop, entries: dict[AccountKind, int]
) -> None:
    async with shop.engine.begin() as connection:
        with pytest.raises(InvariantViolation):
            await posting.post(connection, [transaction(shop.catalogue.tenant_id, entries)])


class TestTheDatabaseItself:
    """Whatever a program tries, the tables refuse it: as the owner, too."""

    TRANSACTION = (
        "INSERT INTO ledger_transaction (id, kind, ref_type, ref_id, tenant_id, at, entry_count) "
        "VALUES ('txn_x', 'k', 't', 'r', '{tenant}', now(), {count})"
    )
    ENTRY = (
        "INSERT INTO ledger_entry (transaction_id, account_id, amount) "
        "SELECT '{transaction}', id, {amount} FROM ledger_account "
        "WHERE kind = '{kind}' AND tenant_id = '{tenant}' AND currency = '{currency}'"
    )

    async def refused(self, shop: Shop, *statements: str) -> str:
        with pytest.raises(IntegrityError) as caught:
            await self.run(shop.owner, *statements)
        return str(caught.value)

    async def run(self, engine: AsyncEngine, *statements: str) -> None:
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    def entry(self, shop: Shop, kind: str, amount: int, **named: str) -> str:
        values = {
            "transaction": "txn_x",
            "tenant": shop.catalogue.tenant_id,
            "currency": "USD",
            "kind": kind,
            "amount": amount,
            **named,
        }
        return self.ENTRY.format(**values)

    async def test_refuses_entries_that_do_not_sum_to_zero(self, shop: Shop) -> None:
        opened = self.TRANSACTION.format(tenant=shop.catalogue.tenant_id, count=2)
        words = await self.refused(shop, opened, self.entry(shop, "wallet", -5), self.entry(shop, "cash", 4))
        assert "off by -1 picos of USD" in words

    async def test_refuses_entries_that_are_missing(self, shop: Shop) -> None:
        opened = self.TRANSACTION.format(tenant=shop.catalogue.tenant_id, count=2)
        assert "has 0 entries, not 2" in await self.refused(shop, opened)

    async def test_refuses_balanced_entries_that_join_later(self, shop: Shop) -> None:
        [old] = await shop.rows("SELECT id FROM ledger_transaction")
        async with shop.owner.begin() as connection:
            for kind in ("promo", "accrued"):
                await connection.execute(
                    text(
                        "INSERT INTO ledger_account (tenant_id, kind, currency) "
                        f"VALUES ('{shop.catalogue.tenant_id}', '{kind}', 'USD')"
                    )
                )
        late = [
            self.entry(shop, "promo", -5, transaction=old),
            self.entry(shop, "accrued", 5, transaction=old),
        ]
        assert "has 4 entries, not 2" in await self.refused(shop, *late)

    async def test_refuses_to_balance_one_currency_with_another(self, shop: Shop) -> None:
        tenant = shop.catalogue.tenant_id
        account = f"INSERT INTO ledger_account (tenant_id, kind, currency) VALUES ('{tenant}', 'cash', 'CNY')"
        opened = self.TRANSACTION.format(tenant=tenant, count=2)
        legs = [self.entry(shop, "wallet", 5), self.entry(shop, "cash", -5, currency="CNY")]
        assert "off by" in await self.refused(shop, account, opened, *legs)

    async def test_refuses_an_account_of_another_tenant(self, shop: Shop) -> None:
        tenant = "INSERT INTO tenant (id, name, currency) VALUES ('ten_b', 'B', 'USD')"
        account = "INSERT INTO ledger_account (tenant_id, kind, currency) VALUES ('ten_b', 'cash', 'USD')"
        opened = self.TRANSACTION.format(tenant=shop.catalogue.tenant_id, count=2)
        legs = [self.entry(shop, "wallet", 5), self.entry(shop, "cash", -5, tenant="ten_b")]
        assert "another tenant" in await self.refused(shop, tenant, account, opened, *legs)

    @pytest.mark.parametrize(
        ("kind", "legs"),
        [
            ("usage", {"wallet": 5, "revenue": -5}),
            ("usage", {"wallet": -5, "breakage": 5}),
            ("grant", {"wallet": 5, "revenue": -5}),
            ("grant", {"wallet": -5, "cash": 5}),
            ("start", {"wallet": -5, "accrued": 5}),
            ("expiry", {"wallet": 5, "breakage": -5}),
            ("correction", {"wallet": 5, "cash": -5}),
        ],
    )
    async def test_refuses_a_leg_that_a_kind_does_not_have(
        self, shop: Shop, kind: str, legs: dict[str, int]
    ) -> None:
        tenant = shop.catalogue.tenant_id
        kinds = ("wallet", "revenue", "breakage", "accrued", "cash")
        account = "INSERT INTO ledger_account (tenant_id, kind, currency) VALUES ('{0}', '{1}', 'USD') "
        accounts = [account.format(tenant, each) + "ON CONFLICT DO NOTHING" for each in kinds]
        opened = self.TRANSACTION.format(tenant=tenant, count=2).replace("'k'", f"'{kind}'")
        entries = [self.entry(shop, name, amount) for name, amount in legs.items()]
        for engine in (shop.owner, shop.engine):
            with pytest.raises(IntegrityError, match=f"of kind {kind} has no leg"):
                await self.run(engine, *accounts, opened, *entries)

    async def test_refuses_to_move_a_wallet_in_another_currency(self, shop: Shop) -> None:
        tenant = shop.catalogue.tenant_id
        account = "INSERT INTO ledger_account (tenant_id, kind, currency) VALUES ('{0}', '{1}', 'CNY')"
        accounts = [account.format(tenant, kind) for kind in ("wallet", "revenue")]
        opened = self.TRANSACTION.format(tenant=tenant, count=2).replace("'k'", "'usage'")
        entry = self.entry(shop, "wallet", -5, currency="CNY")
        assert "is kept in USD, not CNY" in await self.refused(shop, *accounts, opened, entry)

    async def test_lets_history_stand(self, shop: Shop) -> None:
        tables = {
            "ledger_account": "kind",
            "ledger_transaction": "kind",
            "ledger_entry": "amount",
            "wallet_grant": "amount",
        }
        changes = ("UPDATE {0} SET {1} = {1}", "DELETE FROM {0}", "TRUNCATE {0} CASCADE")
        statements = [change.format(*each) for each in tables.items() for change in changes]
        for statement in statements:
            await self.forbidden(shop.owner, statement, words="history stands")
            await self.forbidden(shop.engine, statement, words="permission denied")

    async def forbidden(self, engine: AsyncEngine, statement: str, *, words: str) -> None:
        with pytest.raises(DBAPIError, match=words):
            async with engine.begin() as connection:
                await connection.execute(text(statement))
