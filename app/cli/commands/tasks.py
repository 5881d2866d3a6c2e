"""`steelyard tasks …`: pieces of work with one bill, and perhaps one budget, for many requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.api import connect
from app.cli.errors import usage_error
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    Limit,
    ProjectOption,
    TenantOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, hint, print_json, show_page, show_record, show_rows

verbs = noun(
    "tasks",
    "Pieces of work that clients name (X-Steelyard-Task): one bill, perhaps one budget, for many requests.",
    "steelyard tasks list",
    "steelyard tasks show tsk_0193f0c2",
    "steelyard tasks open nightly-import --budget 2.50",
)
TASKS = {
    "id": "id",
    "name": "name",
    "status": "status",
    "budget": "budget",
    "cost": "cost",
    "currency": "currency",
    "requests": "requests",
    "tokens": "tokens",
    "last_at": "last",
}
LINES = {
    "model": "model",
    "requests": "requests",
    "input": "input",
    "input_cached": "cached",
    "input_cache_write": "cache write",
    "output": "output",
    "cost": "cost",
}
TaskArgument = Annotated[str, typer.Argument(help="Task id: tsk_…")]


@verb(
    verbs,
    "list",
    "steelyard tasks list",
    "steelyard tasks list --project prj_0193f0c2 --status open",
    "steelyard tasks list --name nightly-import --json",
)
def list_tasks(
    *,
    project: Annotated[str | None, typer.Option("--project", help="Of this project.")] = None,
    tenant: TenantOption = None,
    name: Annotated[str | None, typer.Option(help="Of exactly this name.")] = None,
    status: Annotated[str | None, typer.Option(help="open or closed.")] = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List tasks, newest first, with what each has cost so far."""
    only = {"project_id": project, "tenant_id": tenant, "name": name, "status": status}
    with connect(data_dir) as api:
        page = api.get("/tasks", **only, limit=limit, after=after)
    show_page(page, TASKS, as_json=as_json, empty="no tasks: a request names one by X-Steelyard-Task")


@verb(
    verbs,
    "show",
    "steelyard tasks show tsk_0193f0c2",
    "steelyard tasks show tsk_0193f0c2 --json",
    "steelyard tasks show tsk_0193f0c2 --data-dir /srv/steelyard",
)
def show(task: TaskArgument, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a task and its bill, by model."""
    with connect(data_dir) as api:
        _show(api.get(f"/tasks/{task}"), as_json=as_json)


@verb(
    verbs,
    "open",
    "steelyard tasks open nightly-import --budget 2.50",
    "steelyard tasks open tsk_0193f0c2",
    "steelyard tasks open nightly-import --project prj_0193f0c2 --json",
)
def open_task(
    task: Annotated[str, typer.Argument(help="Name of a new task, or the id (tsk_…) of a closed one.")],
    *,
    budget: Annotated[
        str | None, typer.Option(help="The most that it may cost; else no cap of its own.")
    ] = None,
    project: ProjectOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a task ahead of its first request, or open a closed one again."""
    with connect(data_dir) as api:
        if task.startswith("tsk_"):
            changes = {"status": "open"} | ({} if budget is None else {"budget": budget})
            found = api.patch(f"/tasks/{task}", changes)
        else:
            owner = project or api.only(
                f"/tenants/{api.only('/tenants', noun='tenant')}/projects", noun="project"
            )
            found = api.post("/tasks", {"project_id": owner, "name": task, "budget": budget})
    _show(found, as_json=as_json)
    hint(f"requests join it by the header X-Steelyard-Task: {found['name']}")


@verb(
    verbs,
    "budget",
    "steelyard tasks budget tsk_0193f0c2 5.00",
    "steelyard tasks budget tsk_0193f0c2 --none",
    "steelyard tasks budget tsk_0193f0c2 5.00 --json",
)
def set_budget(
    task: TaskArgument,
    amount: Annotated[
        str | None, typer.Argument(help="The most that it may cost, from its first request on.")
    ] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="No cap of its own.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Give a task another budget; what it has cost so far counts."""
    if none is (amount is not None):
        raise usage_error("say an amount, or --none", remedy="steelyard tasks budget TASK 5.00")
    with connect(data_dir) as api:
        _show(api.patch(f"/tasks/{task}", {"budget": amount}), as_json=as_json)


@verb(
    verbs,
    "close",
    "steelyard tasks close tsk_0193f0c2",
    "steelyard tasks close tsk_0193f0c2 --yes",
    "steelyard tasks close tsk_0193f0c2 --yes --json",
)
def close(
    task: TaskArgument, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Refuse further requests of a task; what runs ends as it is."""
    confirm(f"Refuse further requests of {task}?", yes=yes)
    with connect(data_dir) as api:
        _show(api.post(f"/tasks/{task}/close"), as_json=as_json)


def _show(task: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(task)
        return
    show_record({name: value for name, value in task.items() if name != "lines"}, as_json=False)
    show_rows(task["lines"], LINES, as_json=False, empty="nothing is settled of it yet")
