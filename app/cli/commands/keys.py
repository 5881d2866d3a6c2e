"""`steelyard keys …`: credentials of a project, each shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    Limit,
    ProjectOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, hint, show_page, show_record

verbs = noun(
    "keys",
    "API keys of a project. A key's secret is shown once, when it is made.",
    "steelyard keys create ci",
    "steelyard keys list",
    "steelyard keys rotate key_0193f0c2 --overlap 3600",
)
COLUMNS = {
    "id": "id",
    "name": "name",
    "prefix": "begins with",
    "last_four": "ends with",
    "models": "models",
    "state": "state",
    "created_at": "created",
    "expires_at": "expires",
}
KeyId = Annotated[str, typer.Argument(help="Key id: key_…")]


@verb(
    verbs,
    "create",
    "steelyard keys create ci",
    "steelyard keys create ci --project prj_0193f0c2 --model smollm2-135m-instruct",
    "steelyard keys create ci --json",
)
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    *,
    project: ProjectOption = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; repeat for more. Else all.")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Only this scope; repeat for more.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create an API key of a project and print its secret, this once."""
    body: dict[str, Any] = {"name": name}
    if model:
        body["models"] = model
    if scope:
        body["scopes"] = scope
    with connect(data_dir) as api:
        _show_secret(api.post(f"/projects/{_project(api, project)}/keys", body), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard keys list",
    "steelyard keys list --project prj_0193f0c2",
    "steelyard keys list --json",
)
def list_keys(
    *,
    project: ProjectOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the keys of a project, revoked ones too."""
    with connect(data_dir) as api:
        page = api.get(f"/projects/{_project(api, project)}/keys", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no keys: steelyard keys create NAME")


@verb(
    verbs,
    "show",
    "steelyard keys show key_0193f0c2",
    "steelyard keys show key_0193f0c2 --json",
    "steelyard keys show key_0193f0c2 --data-dir /srv/steelyard",
)
def show(key: KeyId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a key, without its secret."""
    with connect(data_dir) as api:
        show_record(api.get(f"/keys/{key}"), as_json=as_json)


@verb(
    verbs,
    "rotate",
    "steelyard keys rotate key_0193f0c2",
    "steelyard keys rotate key_0193f0c2 --overlap 86400",
    "steelyard keys rotate key_0193f0c2 --overlap 0 --yes --json",
)
def rotate(
    key: KeyId,
    *,
    overlap: Annotated[int, typer.Option(min=0, help="Seconds for which both keys are good.")] = 3600,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create a key like this one, and let this one end after an overlap."""
    confirm(f"Replace {key}, which ends in {overlap} s?", yes=yes)
    with connect(data_dir) as api:
        _show_secret(api.post(f"/keys/{key}/rotate", {"overlap_s": overlap}), as_json=as_json)


@verb(
    verbs,
    "revoke",
    "steelyard keys revoke key_0193f0c2",
    "steelyard keys revoke key_0193f0c2 --yes",
    "steelyard keys revoke key_0193f0c2 --yes --json",
)
def revoke(
    key: KeyId, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """End a key now, in every gateway within a second. It can't be undone; its past stays."""
    confirm(f"End {key} now, for good?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.post(f"/keys/{key}/revoke"), as_json=as_json)


def _project(api: Api, given: str | None) -> str:
    """The given project, else the only one there is."""
    if given:
        return given
    tenant = api.only("/tenants", noun="tenant")
    return api.only(f"/tenants/{tenant}/projects", noun="project")


def _show_secret(key: Mapping[str, Any], *, as_json: bool) -> None:
    show_record(key, as_json=as_json)
    hint("the key is shown this once: keep it now")
