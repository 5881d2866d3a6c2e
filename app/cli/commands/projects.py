"""`steelyard projects …`: where keys and budgets live."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    Limit,
    TenantOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, show_page, show_record

verbs = noun(
    "projects",
    "Where a tenant's keys and budgets live.",
    "steelyard projects list",
    "steelyard projects create chatbot --tenant ten_0193f0c2",
    "steelyard projects archive prj_0193f0c2 --yes",
)
COLUMNS = {"id": "id", "name": "name", "tenant_id": "tenant", "status": "status"}
ProjectId = Annotated[str, typer.Argument(help="Project id: prj_…")]


@verb(
    verbs,
    "create",
    "steelyard projects create chatbot",
    "steelyard projects create chatbot --tenant ten_0193f0c2",
    "steelyard projects create chatbot --json",
)
def create(
    name: Annotated[str, typer.Argument(help="Name, one of its kind in the tenant.")],
    *,
    tenant: TenantOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create a project of a tenant."""
    with connect(data_dir) as api:
        owner = tenant or api.only("/tenants", noun="tenant")
        show_record(api.post(f"/tenants/{owner}/projects", {"name": name}), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard projects list",
    "steelyard projects list --tenant ten_0193f0c2",
    "steelyard projects list --json",
)
def list_projects(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the projects of a tenant."""
    with connect(data_dir) as api:
        owner = tenant or api.only("/tenants", noun="tenant")
        page = api.get(f"/tenants/{owner}/projects", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no projects: steelyard projects create NAME")


@verb(
    verbs,
    "show",
    "steelyard projects show prj_0193f0c2",
    "steelyard projects show prj_0193f0c2 --json",
    "steelyard projects show prj_0193f0c2 --data-dir /srv/steelyard",
)
def show(project: ProjectId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a project."""
    with connect(data_dir) as api:
        show_record(api.get(f"/projects/{project}"), as_json=as_json)


@verb(
    verbs,
    "archive",
    "steelyard projects archive prj_0193f0c2",
    "steelyard projects archive prj_0193f0c2 --yes",
    "steelyard projects archive prj_0193f0c2 --yes --json",
)
def archive(
    project: ProjectId, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Refuse all new requests of a project; its past stays."""
    confirm(f"Refuse all new requests of {project}?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.patch(f"/projects/{project}", {"status": "archived"}), as_json=as_json)


@verb(
    verbs,
    "clamp",
    "steelyard projects clamp prj_0193f0c2",
    "steelyard projects clamp prj_0193f0c2 --off",
    "steelyard projects clamp prj_0193f0c2 --json",
)
def clamp(
    project: ProjectId,
    *,
    off: Annotated[bool, typer.Option("--off", help="Refuse such requests instead.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Give requests less output than they ask for where a limit leaves less, and tell them."""
    with connect(data_dir) as api:
        show_record(api.patch(f"/projects/{project}", {"clamp_output": not off}), as_json=as_json)
