"""`/tasks`: pieces of work that clients name, each with one bill and perhaps one budget."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Depends, Query
from pydantic import AfterValidator, Field

from app.control.call import Call, Reads, Writes
from app.control.reach import tenant_within
from app.control.schemas import Identifier, In, Money, Out, Page, PagingQuery, Patch, picos
from app.control.views.routes import router
from app.core.ids import TenantId
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from app.identity.tenants import get_project, get_tenant
from app.insights import tasks as insights
from app.insights.tasks import Line
from billing.quota import authority, tasks
from billing.quota.tasks import Task
from billing.quota.terms import not_found

api = router("tasks")
_Id = Annotated[str | None, Query(max_length=200)]
_Reader = Annotated[Call, Depends(Reads(Scope.USAGE_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.TASKS_WRITE))]
_MOST_PICOS = 10**24
Status = Literal["open", "closed"]


def _is_name(name: str) -> str:
    if name != name.strip() or not name.isprintable():
        raise ValueError("a task's name has printable characters, none of them a space at its ends")
    return name


_Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_is_name)]


class TaskIn(In):
    project_id: Identifier
    name: _Name = Field(
        examples=["invoice-import 2026-12-01"], description="What requests name it by: X-Steelyard-Task."
    )
    budget: Money | None = Field(None, description="The most that it may cost; null: no cap of its own.")


class TaskPatch(Patch):
    nullable: ClassVar[frozenset[str]] = frozenset({"budget"})
    budget: Money | None = Field(
        None, description="For all that it costs from its first request on; null: no cap of its own."
    )
    status: Status | None = None


class BillLine(Out):
    """What it used of one model: billed tokens by class, and what they cost."""

    model_id: str
    model: str
    requests: int
    input: int
    input_cached: int
    input_cache_write: int
    output: int
    cost: str


class TaskOut(Out):
    """A task and what is settled of it.   net_cost: less what corrections gave back; budgets count `cost`."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    status: str
    budget: str | None
    available: str | None = Field(description="What is left of the budget to be lent; null: no budget.")
    leased: str | None = Field(description="Of the budget, with gateway processes: in use or free there.")
    cost: str
    net_cost: str
    currency: str
    requests: int
    tokens: int
    first_at: datetime | None
    last_at: datetime | None
    created_at: datetime
    created_by_key: str | None = Field(description="The API key that named it first; null: made by the API.")
    closed_at: datetime | None


class TaskDetail(TaskOut):
    lines: list[BillLine] = Field(description="The bill: by model, the dearest first; their sum is `cost`.")


@api.post("/tasks", status_code=201, summary="Make a task ahead of its first request")
async def create_task(body: TaskIn, call: _Writer) -> TaskDetail:
    project = await get_project(call.connection, body.project_id, within=call.within)
    made = await tasks.create_task(
        call.connection,
        tenant_id=project.tenant_id,
        project_id=project.id,
        name=body.name,
        budget=_budget(body.budget),
    )
    call.trail.note("task.create", made.id, tenant_id=made.tenant_id, after=_facts(made))
    return await _detail(call, made)


@api.get("/tasks", summary="List tasks, newest first")
async def list_tasks(
    paging: PagingQuery,
    call: _Reader,
    *,
    tenant_id: _Id = None,
    project_id: _Id = None,
    name: Annotated[str | None, Query(max_length=200, description="Exactly this.")] = None,
    status: Status | None = None,
) -> Page[TaskOut]:
    """An API key sees those of its own project."""
    tenant = tenant_within(call, tenant_id)
    if call.actor.project_id is not None:
        if project_id not in (None, call.actor.project_id):
            raise not_found("project", project_id or "")
        project_id = call.actor.project_id
    rows = await tasks.list_tasks(
        call.connection,
        tenant_id=None if tenant is None else TenantId(tenant),
        project_id=project_id,
        name=name,
        status=status,
        before=paging.after,
        limit=paging.fetch,
    )
    shown = {task.id: facts for task, facts, _ in await _billed(call, rows)}
    return paging.page(rows, lambda row: TaskOut(**shown[row.id]))


@api.get("/tasks/{task_id}", summary="Show a task and its bill")
async def show_task(task_id: str, call: _Reader) -> TaskDetail:
    return await _detail(call, await _task(call, task_id))


@api.patch("/tasks/{task_id}", summary="Give a task another budget, close it, or open it again")
async def change_task(task_id: str, body: TaskPatch, call: _Writer) -> TaskDetail:
    """In every gateway within a second. What a request may still cost is held of the budget beforehand."""
    before = after = await _task(call, task_id, lock=True)
    changes = body.changes()
    if "status" in changes:
        closed = body.status == "closed"
        after = await tasks.set_status(call.connection, before.id, closed=closed, now=call.now)
    if "budget" in changes:
        cost = await insights.cost_of(call.connection, before.id)
        after = await tasks.set_budget(call.connection, before.id, budget=_budget(body.budget), cost=cost)
    return await _noted(call, "task.change", before=before, after=after)


@api.post("/tasks/{task_id}/close", summary="Close a task: its further requests are refused")
async def close_task(task_id: str, call: _Writer) -> TaskDetail:
    """What runs ends as it is."""
    before = await _task(call, task_id, lock=True)
    after = await tasks.set_status(call.connection, before.id, closed=True, now=call.now)
    return await _noted(call, "task.close", before=before, after=after)


async def _task(call: Call, task_id: str, *, lock: bool = False) -> Task:
    found = await tasks.get_task(call.connection, task_id, lock=lock)
    elsewhere = call.actor.project_id not in (None, found.project_id)
    if elsewhere or call.within not in (None, found.tenant_id):
        raise not_found("task", task_id)
    return found


def _budget(given: str | None) -> int | None:
    if given is None:
        return None
    amount = picos(given)
    if not 0 <= amount <= _MOST_PICOS:
        invalid("A budget is zero or more.", param="budget")
    return amount


async def _noted(call: Call, action: str, *, before: Task, after: Task) -> TaskDetail:
    if before != after:
        facts = {"before": _facts(before), "after": _facts(after)}
        call.trail.note(action, after.id, tenant_id=after.tenant_id, **facts)
    return await _detail(call, after)


def _facts(task: Task) -> dict[str, Any]:
    budget = None if task.budget is None else format_picos(task.budget)
    return {
        "project_id": task.project_id,
        "name": task.name,
        "budget": budget,
        "status": task.status,
    }


async def _detail(call: Call, task: Task) -> TaskDetail:
    ((_, facts, lines),) = await _billed(call, [task])
    return TaskDetail(**facts, lines=[_line(line) for line in lines])


async def _billed(call: Call, rows: list[Task]) -> list[tuple[Task, dict[str, Any], list[Line]]]:
    """Each task with what is shown of it, and the lines of its bill."""
    found = await insights.bills(call.connection, [row.id for row in rows])
    tenants = {row.tenant_id for row in rows}
    currencies = {
        each: (await get_tenant(call.connection, each, within=call.within)).currency for each in tenants
    }
    shown = []
    for row in rows:
        lines = found[row.id]
        facts = {name: getattr(row, name) for name in ("id", "tenant_id", "project_id", "name", "status")}
        facts |= {name: getattr(row, name) for name in ("created_at", "created_by_key", "closed_at")}
        facts |= await _standing(call, row) | _sums(lines)
        shown.append((row, {**facts, "currency": currencies[row.tenant_id]}, lines))
    return shown


async def _standing(call: Call, task: Task) -> dict[str, str | None]:
    if task.allowance_id is None or task.budget is None:
        return {"budget": None, "available": None, "leased": None}
    stands = await authority.status(call.connection, task.allowance_id)
    return {
        "budget": format_picos(task.budget),
        "available": format_picos(max(stands.available, 0)),
        "leased": format_picos(stands.outstanding),
    }


def _sums(lines: list[Line]) -> dict[str, Any]:
    return {
        "cost": format_picos(sum(line.cost for line in lines)),
        "net_cost": format_picos(sum(line.net_cost for line in lines)),
        "requests": sum(line.requests for line in lines),
        "tokens": sum(line.tokens for line in lines),
        "first_at": min((line.first_at for line in lines), default=None),
        "last_at": max((line.last_at for line in lines), default=None),
    }


def _line(line: Line) -> BillLine:
    names = ("model_id", "model", "requests", "input", "input_cached", "input_cache_write", "output")
    return BillLine(**{name: getattr(line, name) for name in names}, cost=format_picos(line.cost))
