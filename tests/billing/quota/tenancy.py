"""A tenant with projects and keys, plans and overrides, as services make them; a call is a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.core import ids
from app.core.ids import AllowanceId, KeyId, ProjectId, TenantId
from billing.quota import limits, plans
from billing.quota.terms import EffectiveLimit, Override, Plan, PlanLimit, Scope, Subject, What, Window
from tests.database import Database

T = TypeVar("T")
SUBJECT = "scope_kind, scope_id, model_id, what, window_kind"


def each(level: Scope, what: What, window: Window, amount: int, **more: Any) -> PlanLimit:
    """A limit of a plan."""
    burst = more.pop("burst", None)
    return PlanLimit(Subject(level, what, window, **more), amount, burst)


@dataclass
class Tenancy:
    """One tenant, as the role of the running processes changes it."""

    pool: asyncpg.Pool
    engine: AsyncEngine
    url: str
    owner_url: str
    tenant_id: TenantId = field(default_factory=ids.tenant_id)

    async def do(self, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self.engine.begin() as connection:
            return await act(connection)

    async def tenant(
        self, *, zone: str = "UTC", currency: str = "EUR", tenant_id: TenantId | None = None
    ) -> TenantId:
        made = tenant_id or ids.tenant_id()
        await self.pool.execute(
            "INSERT INTO tenant (id, name, currency, timezone) VALUES ($1, 'Acme', $2, $3)",
            made,
            currency,
            zone,
        )
        return made

    async def project(self, *, tenant_id: TenantId | None = None) -> ProjectId:
        made = ids.project_id()
        await self.pool.execute(
            "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, $1)", made, tenant_id or self.tenant_id
        )
        return made

    async def key(
        self, project_id: ProjectId, *, rotated_from: KeyId | None = None, tenant_id: TenantId | None = None
    ) -> KeyId:
        made = ids.key_id()
        await self.pool.execute(
            "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four, rotated_from)"
            " VALUES ($1, $2, $3, 'k', $4, 'sk-sy-tttt', 'tttt', $5)",
            made,
            tenant_id or self.tenant_id,
            project_id,
            sha256(made.encode()).digest(),
            rotated_from,
        )
        return made

    async def plan(self, *of: PlanLimit, name: str = "Team", currency: str | None = "EUR") -> Plan:
        return await self.do(lambda c: plans.create_plan(c, name=name, currency=currency, limits=of))

    async def assign(
        self, plan: Plan | None, *, start: datetime | None = None, tenant_id: TenantId | None = None
    ) -> Any:
        plan_id = None if plan is None else plan.id
        return await self.do(
            lambda c: plans.assign(
                c, tenant_id=tenant_id or self.tenant_id, plan_id=plan_id, effective_from=start, by="test"
            )
        )

    async def replace(self, plan: Plan, *of: PlanLimit) -> None:
        await self.do(lambda c: plans.replace_limits(c, plan.id, limits=of))

    async def override(
        self,
        scope_id: str,
        limit: PlanLimit,
        *,
        unlimited: bool = False,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Override:
        return await self.do(
            lambda c: limits.override(
                c,
                tenant_id=self.tenant_id,
                scope_id=scope_id,
                subject=limit.subject,
                amount=None if unlimited else limit.amount,
                burst=limit.burst,
                effective_from=start,
                expires_at=end,
                reason="a test",
                by="test",
            )
        )

    async def revoke(self, override: Override) -> Override:
        return await self.do(lambda c: limits.revoke(c, override.id))

    async def effective(self, *, scope_ids: Sequence[str] | None = None) -> list[EffectiveLimit]:
        within = None if scope_ids is None else frozenset(scope_ids)
        return await self.do(lambda c: limits.effective(c, self.tenant_id, scope_ids=within))

    async def resolve(self) -> datetime | None:
        return await self.do(lambda c: limits.resolve(c, self.tenant_id))

    async def amounts(self) -> dict[tuple[str, str, str], int | None]:
        """What holds now: (scope, what, window) → amount."""
        return {
            (found.scope_id, found.subject.what, found.subject.window): found.amount
            for found in await self.effective()
        }

    async def rows(self, *, living: bool = True) -> list[asyncpg.Record]:
        """The tenant's limits as allowances, all periods, in their order."""
        return await self.pool.fetch(
            "SELECT * FROM allowance WHERE tenant_id = $1 AND limit_source IS NOT NULL"
            f" AND (ended_at IS NULL OR NOT $2) ORDER BY {SUBJECT}, period_start",
            self.tenant_id,
            living,
        )

    async def due(self) -> datetime | None:
        moment: datetime | None = await self.pool.fetchval(
            "SELECT next_change_at FROM tenant_limits WHERE tenant_id = $1", self.tenant_id
        )
        return moment

    async def now(self) -> datetime:
        moment: datetime = await self.pool.fetchval("SELECT clock_timestamp()")
        return moment

    async def lend(self, allowance_id: AllowanceId, amount: int) -> None:
        """A process has so much of it."""
        incarnation = ids.incarnation_id()
        await self.pool.execute("INSERT INTO incarnation (id, host) VALUES ($1, 'test')", incarnation)
        await self.pool.execute(
            "INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES ($1, $2, $3)",
            allowance_id,
            incarnation,
            amount,
        )


@asynccontextmanager
async def open_tenancy(database: Database, *, zone: str = "UTC") -> AsyncIterator[Tenancy]:
    """A tenant of its own on a database."""
    engine = create_async_engine(database.app_sqlalchemy_url)
    async with asyncpg.create_pool(database.app_url, min_size=1, max_size=6) as pool:
        opened = Tenancy(pool, engine, database.app_url, database.owner_url)
        await opened.tenant(zone=zone, tenant_id=opened.tenant_id)
        try:
            yield opened
        finally:
            await engine.dispose()
