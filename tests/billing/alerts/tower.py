"""Watches allowances of a real authority: borrows and spends of them, looks for alerts, reads the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.clock import ManualClock, from_ms
from app.core.database import connect_engine
from app.core.ids import AllowanceId, IncarnationId, TenantId
from billing.alerts import endpoints, outbox, rules, watch
from billing.alerts.model import Alert, Delivery, Endpoint, Rule
from billing.quota.model import LeaseReport, Need, Sync
from tests.billing.quota.desk import Desk, open_desk
from tests.database import Database


@dataclass
class Tower:
    """One database with a tenant; each method is one transaction of the processes' role."""

    desk: Desk
    engine: AsyncEngine
    clock: ManualClock
    _sequence: int = field(default=0)

    @property
    def now(self) -> Any:
        return from_ms(self.clock.now_ms())

    async def tenant(self, name: str = "Other") -> TenantId:
        fresh = ids.tenant_id()
        await self.desk.pool.execute(
            "INSERT INTO tenant (id, name, currency) VALUES ($1, $2, 'USD')", fresh, name
        )
        return fresh

    async def allowance(self, limit: int, **facts: Any) -> AllowanceId:
        """An allowance of the tenant, its wallet unless `facts` say otherwise."""
        values = {
            "id": ids.allowance_id(),
            "tenant_id": self.desk.tenant,
            "scope_kind": "tenant",
            "what": "picos",
            "window_kind": "balance",
            "limit_amount": limit,
            **facts,
        }
        values.setdefault("scope_id", values["tenant_id"])
        columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        async with self.engine.begin() as connection:
            await connection.execute(text(f"INSERT INTO allowance ({columns}) VALUES ({marks})"), values)
        return AllowanceId(str(values["id"]))

    async def lend(self, incarnation: IncarnationId, allowance: AllowanceId, amount: int) -> None:
        """Ask for a whole need, which is given."""
        self._sequence += 1
        answer = await self.desk.sync(incarnation, Sync(self._sequence, (), ((Need(allowance, amount),),)))
        assert answer.asks == ((),)

    async def give_back(self, incarnation: IncarnationId, allowance: AllowanceId, total: int) -> None:
        self._sequence += 1
        report = LeaseReport(allowance, total, 0)
        await self.desk.sync(incarnation, Sync(self._sequence, (report,), ()))

    async def set_limit(self, allowance: AllowanceId, limit: int) -> None:
        status = await self.desk.status(allowance)
        await self.desk.change_limit(allowance, by=limit - status.limit)

    async def due(self) -> list[AllowanceId]:
        async with self.engine.begin() as connection:
            return await watch.find_due(connection)

    async def look(self) -> int:
        """Look at all that is due, as the worker does: sweeps first."""
        total = 0
        while (step := await self._sweep()) is not None:
            total += step
        while due := await self.due():
            async with self.engine.begin() as connection:
                total += await watch.look(connection, due, now=self.now)
        return total

    async def _sweep(self) -> int | None:
        async with self.engine.begin() as connection:
            return await watch.sweep(connection, now=self.now)

    async def alerts(self, allowance: AllowanceId | None = None) -> list[Alert]:
        """Alerts, oldest first."""
        async with self.engine.connect() as connection:
            found = await outbox.list_alerts(
                connection, only={"allowance_id": allowance}, before=None, limit=500
            )
        return found[::-1]

    async def told(self, allowance: AllowanceId) -> list[int]:
        """The thresholds told of an allowance, in their order."""
        return [alert.threshold for alert in await self.alerts(allowance)]

    async def deliveries(self, **only: str | None) -> list[Delivery]:
        async with self.engine.connect() as connection:
            return await outbox.list_deliveries(connection, only=only, before=None, limit=500)

    async def endpoint(
        self,
        address: str = "https://hooks.example/a",
        *,
        tenant: TenantId | None = None,
        kind: str = "webhook",
    ) -> Endpoint:
        async with self.engine.begin() as connection:
            made, _ = await endpoints.create_endpoint(
                connection,
                tenant or self.desk.tenant,
                kind=kind,
                name="operations",
                address=address,
                created_by="mem_one",
                now=self.now,
            )
        return made

    async def rule(self, percents: Sequence[int] = (), **terms: Any) -> Rule:
        async with self.engine.begin() as connection:
            return await rules.create_rule(
                connection,
                self.desk.tenant,
                terms={"percents": list(percents), **terms},
                created_by="mem_one",
                now=self.now,
            )


@asynccontextmanager
async def open_tower(database: Database) -> AsyncIterator[Tower]:
    engine = connect_engine(database.app_url)
    try:
        async with open_desk(database) as desk:
            yield Tower(desk, engine, ManualClock())
    finally:
        await engine.dispose()
