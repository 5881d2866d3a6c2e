"""Who buys in `bench.quota`: tenants with a wallet filled to the pico, and the limits that they have."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.core import ids
from billing.ledger import service as ledger
from billing.quota import limits, plans
from billing.quota.terms import PlanLimit, Scope, Subject, What, Window
from tests.app.gateway.house import Seeded, seed
from tests.database import Database


@dataclass(frozen=True)
class Buyer:
    """A tenant with one project and one key.   wallet: its allowance."""

    tenant_id: ids.TenantId
    project_id: str
    key_id: str
    secret: str
    wallet: str
    balance: int


@dataclass(frozen=True)
class Put:
    """A limit of a tenant as it was set.   burst: of a rate."""

    allowance_id: str
    amount: int
    burst: int | None


async def open_shop(database: Database) -> Seeded:
    """The catalogue: one model with prices. Its own tenant buys nothing."""
    return await seed(database, balance=0)


async def new_buyers(database: Database, balances: Sequence[int]) -> list[Buyer]:
    """Tenants with these balances, in picos."""
    found = [_draft(balance) for balance in balances]
    connection = await asyncpg.connect(database.owner_url)
    try:
        async with connection.transaction():
            await _insert(connection, found)
    finally:
        await connection.close()
    engine = create_async_engine(database.owner_sqlalchemy_url)
    try:
        async with engine.begin() as session:
            return [await _fill(session, buyer) for buyer in found]
    finally:
        await engine.dispose()


async def _insert(connection: Any, buyers: Sequence[Buyer]) -> None:
    await connection.executemany(
        "INSERT INTO tenant (id, name, currency) VALUES ($1, $1, 'USD')", [(b.tenant_id,) for b in buyers]
    )
    await connection.executemany(
        "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'bench')",
        [(b.project_id, b.tenant_id) for b in buyers],
    )
    await connection.executemany(
        "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
        " VALUES ($1, $2, $3, 'bench', $4, left($5, 10), right($5, 4))",
        [
            (b.key_id, b.tenant_id, b.project_id, hashlib.sha256(b.secret.encode()).digest(), b.secret)
            for b in buyers
        ],
    )


def _draft(balance: int) -> Buyer:
    secret = f"sk-sy-{secrets.token_hex(21)}x"
    return Buyer(ids.tenant_id(), ids.project_id(), ids.key_id(), secret, "", balance)


async def _fill(session: AsyncConnection, buyer: Buyer) -> Buyer:
    wallet = await ledger.open_wallet(session, tenant_id=buyer.tenant_id, currency="USD")
    if buyer.balance:
        await ledger.grant(
            session,
            wallet_id=wallet.id,
            amount=buyer.balance,
            kind="purchased",
            reason="bench",
            reference="bench",
            created_by="bench",
        )
    return Buyer(
        buyer.tenant_id,
        buyer.project_id,
        buyer.key_id,
        buyer.secret,
        wallet.allowance_id,
        buyer.balance,
    )


async def put_limit(
    engine: AsyncEngine,
    buyer: Buyer,
    *,
    what: What,
    window: Window,
    amount: int,
    burst: int | None = None,
    of: Scope = "tenant",
) -> Put:
    """Set a limit of a buyer as an operator does, and return it as it holds."""
    scopes: dict[Scope, str] = {"tenant": buyer.tenant_id, "project": buyer.project_id, "key": buyer.key_id}
    subject = Subject(of, what, window)
    async with engine.begin() as connection:
        await limits.override(
            connection,
            tenant_id=buyer.tenant_id,
            scope_id=scopes[of],
            subject=subject,
            amount=amount,
            burst=burst,
            reason="bench",
            by="bench",
        )
    async with engine.connect() as connection:
        held = await limits.effective(connection, buyer.tenant_id)
    found = next(each for each in held if each.subject == subject)
    assert found.allowance_id is not None
    return Put(found.allowance_id, amount, found.burst)


async def put_plan(
    engine: AsyncEngine, buyers: Sequence[Buyer], *, database: Database, of: Sequence[PlanLimit]
) -> None:
    """Give all buyers one plan."""
    async with engine.begin() as connection:
        plan = await plans.create_plan(connection, name=f"bench {ids.plan_id()}", limits=of)
    books = await asyncpg.connect(database.owner_url)
    tenants = [buyer.tenant_id for buyer in buyers]
    try:
        await books.executemany(
            "INSERT INTO plan_assignment (id, tenant_id, plan_id, effective_from, created_by)"
            " VALUES ($1, $2, $3, now(), 'bench')",
            [(ids.plan_assignment_id(), tenant, plan.id) for tenant in tenants],
        )
        await books.execute("SELECT quota_resolve_all($1, NULL)", tenants)
    finally:
        await books.close()
