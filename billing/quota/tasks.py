"""Tasks as the control API sees them: made, found, listed, closed, given another budget.

Gateways make them too. A task's budget is an allowance like any other. Each change is told to the gateways
as it commits.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from sqlalchemy import Select, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import AllowanceId, KeyId, ProjectId, TaskId, TenantId
from billing.quota import authority
from billing.quota.tables import allowance, task
from billing.quota.terms import not_found


class Task(msgspec.Struct, frozen=True):
    """A task.   declared: the budget of its first request.   budget: what it is now; picos, None without one.

    spent_before: the part of its cost that its allowance did not count: the limit is budget − spent_before.
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


async def create_task(
    connection: AsyncConnection, *, tenant_id: TenantId, project_id: ProjectId, name: str, budget: int | None
) -> Task:
    """A new open task of a project. Raises Conflict if it has one of this name."""
    values = {"id": ids.task_id(), "tenant_id": tenant_id, "project_id": project_id, "name": name}
    created = insert(task).values(values).on_conflict_do_nothing().returning(task.c.id)
    task_id = await connection.scalar(created)
    if task_id is None:
        raise Conflict("The project has a task of this name.", name=name)
    if budget is None:
        return await get_task(connection, task_id)
    return await set_budget(connection, task_id, budget=budget, cost=0)


async def get_task(connection: AsyncConnection, task_id: str, *, lock: bool = False) -> Task:
    """The task.   lock: nobody else changes it before the commit. Raises Rejected (404) if there is none."""
    query: Select[tuple[object, ...]] = select(task).where(task.c.id == task_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        raise not_found("task", task_id)
    return Task(**row._mapping)


async def list_tasks(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId | None = None,
    project_id: str | None = None,
    name: str | None = None,
    status: str | None = None,
    before: str | None = None,
    limit: int,
) -> list[Task]:
    """Tasks, the newest first, before a given one."""
    mine = task.c
    wanted = (
        (mine.tenant_id, tenant_id),
        (mine.project_id, project_id),
        (mine.name, name),
        (mine.status, status),
    )
    query = select(task).where(*(column == value for column, value in wanted if value is not None))
    if before is not None:
        query = query.where(mine.id < before)
    rows = await connection.execute(query.order_by(mine.id.desc()).limit(limit))
    return [Task(**row._mapping) for row in rows]


async def set_status(connection: AsyncConnection, task_id: str, *, closed: bool, now: datetime) -> Task:
    """The task, closed (it takes no more requests; what runs ends as it is) or open again. Idempotent."""
    status = "closed" if closed else "open"
    changed = update(task).where(task.c.id == task_id, task.c.status != status)
    await connection.execute(changed.values(status=status, closed_at=now if closed else None))
    return await get_task(connection, task_id)


async def set_budget(connection: AsyncConnection, task_id: str, *, budget: int | None, cost: int) -> Task:
    """The task with this budget in picos, or with none; what it has cost so far is a part of it.

    cost: what is settled of it. Of a task that had no budget, requests that run now hold nothing of it.
    """
    before = await get_task(connection, task_id, lock=True)
    if budget == before.budget:
        return before
    if budget is None:
        values = await _without(connection, before)
    elif before.allowance_id is not None:
        values = await _moved(connection, before, allowance_id=before.allowance_id, budget=budget)
    else:
        values = await _with(connection, before, budget=budget, cost=cost)
    await connection.execute(update(task).where(task.c.id == task_id).values(values))
    return await get_task(connection, task_id)


async def _without(connection: AsyncConnection, before: Task) -> dict[str, object]:
    """Without a budget: its allowance holds no more requests, and stays for what it counted."""
    ended = update(allowance).where(allowance.c.id == before.allowance_id).values(ended_at=func.now())
    await connection.execute(ended)
    return {"budget": None, "allowance_id": None, "spent_before": 0}


async def _moved(
    connection: AsyncConnection, before: Task, *, allowance_id: AllowanceId, budget: int
) -> dict[str, object]:
    await _set_limit(connection, allowance_id, limit=budget - before.spent_before)
    return {"budget": budget}


async def _with(connection: AsyncConnection, before: Task, *, budget: int, cost: int) -> dict[str, object]:
    """With a budget, for the first time or again: then with the allowance that it had."""
    of_task = (allowance.c.scope_kind == "task", allowance.c.scope_id == before.id)
    known = await connection.scalar(select(allowance.c.id).where(*of_task))
    if known is None:
        known = await authority.create_allowance(
            connection,
            tenant_id=before.tenant_id,
            scope_kind="task",
            scope_id=before.id,
            what="picos",
            window_kind="balance",
            limit=0,
        )
    allowance_id = AllowanceId(known)
    counted = (await authority.hold_still(connection, allowance_id)).spent
    spent_before = max(cost - counted, 0)  # more may be counted by now than was when the cost was read
    await connection.execute(update(allowance).where(allowance.c.id == allowance_id).values(ended_at=None))
    await _set_limit(connection, allowance_id, limit=budget - spent_before)
    return {"budget": budget, "allowance_id": allowance_id, "spent_before": spent_before}


async def _set_limit(connection: AsyncConnection, allowance_id: AllowanceId, *, limit: int) -> None:
    status = await authority.hold_still(connection, allowance_id)
    by = max(limit, 0) - status.limit
    if by:
        await authority.change_limit(connection, allowance_id, by=by)
