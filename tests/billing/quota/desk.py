"""A real authority for tests: opens allowances, speaks the message, posts and closes, on one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.core.ids import AllowanceId, IncarnationId, TenantId, allowance_id, incarnation_id, tenant_id
from billing.quota import authority
from billing.quota.model import AllowanceStatus, Answer, Rate, Sync
from billing.quota.wire import arguments, read_answer
from tests.database import Database

SYNC = "SELECT quota_sync($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)::text"


@dataclass
class Desk:
    """One database, as the role of the running processes: each method is one transaction."""

    pool: asyncpg.Pool
    engine: AsyncEngine
    tenant: TenantId
    url: str
    owner_url: str

    async def allowance(self, limit: int, *, scope: str = "wallet") -> AllowanceId:
        async with self.engine.begin() as connection:
            return await authority.create_allowance(
                connection,
                tenant_id=self.tenant,
                scope_kind="tenant",
                scope_id=f"{self.tenant}/{scope}",
                what="picos",
                window_kind="balance",
                limit=limit,
            )

    async def rate(self, rate: Rate, *, scope: str = "rate", level: int | None = None) -> AllowanceId:
        """A rate whose bucket is full, or has `level`."""
        row_id = allowance_id()
        await self.pool.execute(
            "INSERT INTO allowance (id, tenant_id, scope_kind, scope_id, what, window_kind, limit_amount,"
            " burst, level_micros, level_at)"
            " VALUES ($1, $2, 'tenant', $3, 'tokens', 'minute', $4, $5, $6, now())",
            row_id,
            self.tenant,
            f"{self.tenant}/{scope}",
            rate.per_minute,
            rate.burst,
            1_000_000 * (rate.burst if level is None else level),
        )
        return row_id

    async def as_owner(self, statement: str, *arguments: object) -> None:
        """What no running process does: moves the times that the authority wrote down."""
        connection = await asyncpg.connect(self.owner_url)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()

    async def age(self, allowance: AllowanceId, *, seconds: float) -> None:
        """As if so much time had gone by since a rate and its leases were last looked at."""
        gone = timedelta(seconds=seconds)
        await self.as_owner(
            "UPDATE allowance SET level_at = level_at - $2::interval WHERE id = $1", allowance, gone
        )
        await self.as_owner(
            "UPDATE lease SET heard_at = heard_at - $2::interval WHERE allowance_id = $1", allowance, gone
        )

    async def incarnation(self) -> IncarnationId:
        fresh = incarnation_id()
        await self.pool.execute("INSERT INTO incarnation (id, host) VALUES ($1, 'test')", fresh)
        return fresh

    async def sync(self, incarnation: IncarnationId, message: Sync) -> Answer:
        return read_answer(await self.pool.fetchval(SYNC, *arguments(incarnation, message)))

    async def post(
        self, incarnation: IncarnationId, *uses: tuple[AllowanceId, int, int]
    ) -> dict[AllowanceId, int]:
        async with self.engine.begin() as connection:
            return await authority.post(connection, incarnation, uses)

    async def close(
        self,
        incarnation: IncarnationId,
        parked: Mapping[AllowanceId, int] | None = None,
        *,
        released: bool = False,
    ) -> None:
        end = authority.release if released else authority.close
        async with self.engine.begin() as connection:
            await end(connection, incarnation, parked=parked or {})

    async def change_limit(self, allowance: AllowanceId, *, by: int) -> None:
        async with self.engine.begin() as connection:
            await authority.change_limit(connection, allowance, by=by)

    async def status(self, allowance: AllowanceId) -> AllowanceStatus:
        async with self.engine.connect() as connection:
            return await authority.status(connection, allowance)

    async def outstanding(self, incarnation: IncarnationId) -> dict[AllowanceId, int]:
        async with self.engine.connect() as connection:
            return await authority.outstanding(connection, incarnation)

    @asynccontextmanager
    async def hearing(self) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
        """Yields a call that returns what was notified since it was last called."""
        connection = await asyncpg.connect(self.url)
        heard: list[str] = []
        await connection.add_listener("steelyard_changes", lambda *told: heard.append(str(told[-1])))

        async def take() -> list[str]:
            mark = f"mark:{uuid4()}"
            await self.pool.execute("SELECT pg_notify('steelyard_changes', $1)", mark)
            while mark not in heard:
                await connection.execute("SELECT 1")
                await asyncio.sleep(0)
            told, heard[:] = heard[: heard.index(mark)], []
            return told

        try:
            yield take
        finally:
            await connection.close()

    async def uncovered(self) -> int:
        async with self.engine.connect() as connection:
            return await authority.uncovered(connection)


@asynccontextmanager
async def open_desk(database: Database, *, connections: Sequence[int] = (1, 12)) -> AsyncIterator[Desk]:
    low, high = connections
    pool = await asyncpg.create_pool(database.app_url, min_size=low, max_size=high)
    engine = create_async_engine(database.app_sqlalchemy_url)
    tenant = tenant_id()
    try:
        await pool.execute("INSERT INTO tenant (id, name, currency) VALUES ($1, 'Acme', 'EUR')", tenant)
        yield Desk(pool, engine, tenant, database.app_url, database.owner_url)
    finally:
        await engine.dispose()
        await pool.close()
