"""What operators do with limits. Each may be done twice: its process died before it knew."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import PlanId
from billing.quota import limits, plans, tasks
from billing.quota.plans import lock_limits
from billing.quota.tables import plan
from tests.simulation.caps import TYPICAL_HOLD, Cap
from tests.simulation.catalogue import Catalogue, Payer

_BY = "simulation"
_COST = text("SELECT coalesce(sum(cost), 0) FROM usage_event WHERE task_id = :id")
_TASK_IDS = text("SELECT id FROM task ORDER BY id")


class LimitDesk:
    """The plans of a run, which all its tenants have, and the changes of them.

    edits: how often somebody began to change a limit.
    """

    def __init__(self, catalogue: Catalogue, caps: Sequence[Cap]) -> None:
        self._catalogue = catalogue
        self._caps = tuple(caps)
        self.edits = 0

    async def open_plans(self, connection: AsyncConnection) -> None:
        """The plan that every tenant has at the beginning, and one to change to."""
        if not self._caps:
            return
        first = await self._plan(connection, "first", self._caps)
        await self._plan(connection, "second", [cap.scaled(2) for cap in self._caps[::2]])
        for payer in self._catalogue.payers:
            if not await plans.list_assignments(connection, tenant_id=payer.tenant_id, after=None, limit=1):
                await plans.assign(connection, tenant_id=payer.tenant_id, plan_id=first, by=_BY)

    async def scale_plan(self, connection: AsyncConnection, *, percent: int) -> None:
        """Another amount of each limit of the first plan."""
        self.edits += 1
        plan_id = await self._find(connection, "first")
        changed = [cap.scaled(max(percent, 20) / 100).limit(self._catalogue.model_id) for cap in self._caps]
        await plans.replace_limits(connection, plan_id, limits=changed)

    async def override(
        self, connection: AsyncConnection, *, which: int, percent: int, lasts_s: float
    ) -> None:
        """Another limit for one tenant, or none at all, for a while.   percent 0: none."""
        self.edits += 1
        payer, cap = self._payer(which), self._caps[which % len(self._caps)]
        changed = cap.scaled(percent / 100)
        now = await lock_limits(connection, payer.tenant_id)
        await limits.override(
            connection,
            tenant_id=payer.tenant_id,
            scope_id=payer.scopes[cap.scope],
            subject=changed.limit(self._catalogue.model_id).subject,
            amount=changed.amount if percent else None,
            burst=changed.burst if percent else None,
            expires_at=now + timedelta(seconds=lasts_s),
            reason="simulated",
            by=_BY,
        )

    async def change_plan(self, connection: AsyncConnection, *, which: int) -> None:
        """Another plan, now or in a moment; or none."""
        self.edits += 1
        payer = self._payer(which)
        now = await lock_limits(connection, payer.tenant_id)
        plan_id = None if which % 5 == 0 else await self._find(connection, "second")
        await plans.assign(
            connection,
            tenant_id=payer.tenant_id,
            plan_id=plan_id,
            effective_from=now + timedelta(milliseconds=500) if which % 2 else None,
            by=_BY,
        )

    async def set_task_budget(self, connection: AsyncConnection, *, which: int, percent: int) -> None:
        """Another budget of a task that there is by now, or none."""
        self.edits += 1
        found = list((await connection.execute(_TASK_IDS)).scalars())
        if not found:
            return
        task_id = found[which % len(found)]
        cost = int((await connection.execute(_COST, {"id": task_id})).scalar_one())
        budget = TYPICAL_HOLD * percent // 100 if percent else None
        await tasks.set_budget(connection, task_id, budget=budget, cost=cost)

    async def _plan(self, connection: AsyncConnection, name: str, caps: Sequence[Cap]) -> PlanId:
        if found := await connection.scalar(select(plan.c.id).where(plan.c.name == name)):
            return PlanId(found)
        made = await plans.create_plan(
            connection,
            name=name,
            currency="USD",
            limits=[cap.limit(self._catalogue.model_id) for cap in caps],
        )
        return made.id

    async def _find(self, connection: AsyncConnection, name: str) -> PlanId:
        return PlanId((await connection.execute(select(plan.c.id).where(plan.c.name == name))).scalar_one())

    def _payer(self, which: int) -> Payer:
        return self._catalogue.payers[which % len(self._catalogue.payers)]
