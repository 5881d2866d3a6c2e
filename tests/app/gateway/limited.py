"""Limits of a test's tenant, set by the service that operators use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from app.core.ids import ModelId
from billing.quota import limits
from billing.quota.terms import Scope, Subject, What, Window
from tests.app.gateway.house import Seeded
from tests.database import Database

Before = Callable[[Database, Seeded], Awaitable[None]]


def limit(
    what: What,
    window: Window,
    amount: int | None,
    *,
    of: Scope = "tenant",
    model: bool = False,
    burst: int | None = None,
) -> Before:
    """Sets a limit of the tenant, its project or its key, for all models or the one that there is."""

    async def put(database: Database, seeded: Seeded) -> None:
        scopes = {"tenant": seeded.tenant_id, "project": seeded.project_id, "key": seeded.key_id}
        subject = Subject(of, what, window, ModelId(seeded.model_id) if model else None)
        engine = create_async_engine(database.app_sqlalchemy_url)
        try:
            async with engine.begin() as connection:
                await limits.override(
                    connection,
                    tenant_id=seeded.tenant_id,
                    scope_id=scopes[of],
                    subject=subject,
                    amount=amount,
                    burst=burst,
                    reason="test",
                    by="test",
                )
        finally:
            await engine.dispose()

    return put


def clamping() -> Before:
    """Lets the project be given less output rather than a refusal."""

    async def put(database: Database, _seeded: Seeded) -> None:
        await run(database, "UPDATE project SET clamp_output = true")

    return put


def all_of(*each: Before) -> Before:
    """One after another."""

    async def put(database: Database, seeded: Seeded) -> None:
        for one in each:
            await one(database, seeded)

    return put


async def run(database: Database, statement: str, *arguments: Any) -> list[Any]:
    """What a statement of the tables' owner gives."""
    connection = await asyncpg.connect(database.owner_url)
    try:
        found: list[Any] = await connection.fetch(statement, *arguments)
        return found
    finally:
        await connection.close()
