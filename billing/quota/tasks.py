"""Tasks as operators and tenants see them: found, listed, closed, given another budget. Gateways make them.

A task's budget is an allowance like any other; each change is told to the gateways when it commits.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import AllowanceId, KeyId, ProjectId, TaskId, TenantId
from billing.quota import authority
from billing.quota.tables import allowance, task


class TaskState(msgspec.Struct, frozen=True):
    """A task.   declared: the budget of its first request.   budget: what it is now; picos, None without one.

    spent_before: what it had cost when it was given that budget.
    """

    id: TaskId
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    declared: int | None
    budget: int | None
    spent_before: int
    allowance_id: AllowanceId | None
    status: str
    created_at: datetime
    created_by_key: KeyId | None
    closed_at: datetime | None


class Bill(msgspec.Struct, frozen=True):
    """What a task's posted requests come to.   tokens: billed, of all classes.   cost: picos, as charged."""

    requests: int
    tokens: int
    cost: int
    first_at: datetime | None
    last_at: datetime | None


_BILLS = text("""
SELECT task_id, count(*) AS requests, min(admitted_at) AS first_at, max(admitted_at) AS last_at,
  sum(billed_input + billed_input_cached + billed_input_cache_write + billed_output)::bigint AS tokens,
  sum(cost) AS cost
FROM usage_event WHERE task_id = ANY (:tasks) GROUP BY task_id
""")
NOTHING_YET = Bill(0, 0, 0, None, None)


async def get(connection: AsyncConnection, task_id: str, *, within: TenantId | None = None) -> TaskState:
    """The task. Raises Rejected (404) if there is none within reach."""
    row = (await connection.execute(select(task).where(task.c.id == task_id))).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        raise Rejected(RejectReason.NOT_FOUND, "There is no such task.", status=404, id=task_id)
    return TaskState(**row._mapping)


async def list_tasks(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId,
    project_id: str | None = None,
    status: str | None = None,
    name: str | None = None,
    before: str | None = None,
    limit: int,
) -> list[TaskState]:
    """A tenant's tasks, the newest first, before a given one."""
    query = select(task).where(task.c.tenant_id == tenant_id)
    for column, wanted in ((task.c.project_id, project_id), (task.c.status, status), (task.c.name, name)):
        if wanted is not None:
            query = query.where(column == wanted)
    if before is not None:
        query = query.where(task.c.id < before)
    rows = await connection.execute(query.order_by(task.c.id.desc()).limit(limit))
    return [TaskState(**row._mapping) for row in rows]


async def bills(connection: AsyncConnection, task_ids: list[TaskId]) -> dict[TaskId, Bill]:
    """What each task's posted requests come to; one without any is not named."""
    rows = await connection.execute(_BILLS, {"tasks": task_ids})
    return {
        TaskId(row.task_id): Bill(row.requests, row.tokens, int(row.cost), row.first_at, row.last_at)
        for row in rows
    }


async def close(connection: AsyncConnection, task_id: TaskId) -> TaskState:
    """The task, closed: it takes no more requests within a second; what runs ends as it is. Idempotent."""
    changed = (
        update(task)
        .where(task.c.id == task_id, task.c.status == "open")
        .values(status="closed", closed_at=func.now())
    )
    await connection.execute(changed)
    return await get(connection, task_id)


async def set_budget(connection: AsyncConnection, task_id: TaskId, *, budget: int) -> TaskState:
    """The task with this budget in picos, of which what it has cost by now is a part.

    Of a task without one, requests that run now are outside: they hold nothing of it. Raises Conflict if
    it is closed.
    """
    assert budget >= 0
    row = (await connection.execute(select(task).where(task.c.id == task_id).with_for_update())).one_or_none()
    before = await get(connection, task_id) if row is None else TaskState(**row._mapping)
    if before.status == "closed":
        raise Conflict("A closed task keeps its budget.", id=task_id)
    if before.allowance_id is not None:
        await _move_limit(connection, before.allowance_id, budget=budget, spent_before=before.spent_before)
        values: dict[str, object] = {"budget": budget}
    else:
        values = await _first_budget(connection, before, budget=budget)
    await connection.execute(update(task).where(task.c.id == task_id).values(values))
    return await get(connection, task_id)


async def _move_limit(
    connection: AsyncConnection, allowance_id: AllowanceId, *, budget: int, spent_before: int
) -> None:
    status = await authority.hold_still(connection, allowance_id)
    by = max(budget - spent_before, 0) - status.limit
    if by:
        await authority.change_limit(connection, allowance_id, by=by)


async def _first_budget(connection: AsyncConnection, before: TaskState, *, budget: int) -> dict[str, object]:
    bill = (await bills(connection, [before.id])).get(before.id, NOTHING_YET)
    allowance_id = ids.allowance_id()
    await connection.execute(
        allowance.insert().values(
            id=allowance_id,
            tenant_id=before.tenant_id,
            scope_kind="task",
            scope_id=before.id,
            what="picos",
            window_kind="balance",
            limit_amount=max(budget - bill.cost, 0),
        )
    )
    return {"budget": budget, "allowance_id": allowance_id, "spent_before": bill.cost}
