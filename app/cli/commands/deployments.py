"""`steelyard deployments …`: models served by backends under a policy."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, noun, verb
from app.cli.present import show_page, show_record

verbs = noun(
    "deployments",
    "A model served by backends under a policy.",
    "steelyard deployments list",
    "steelyard deployments create qwen3-8b",
    "steelyard deployments show dep_0193f0c2",
)
COLUMNS = {"id": "id", "model_id": "model", "policy": "policy", "created_at": "created"}


@verb(
    verbs,
    "create",
    "steelyard deployments create qwen3-8b",
    "steelyard deployments create mdl_0193f0c2 --policy least_predicted_wait",
    "steelyard deployments create qwen3-8b --json",
)
def create(
    model: Annotated[str, typer.Argument(help="Model id or name.")],
    *,
    policy: Annotated[str, typer.Option(help="How a backend is chosen.")] = "least_predicted_wait",
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Serve a model: backends are added to the deployment."""
    with connect(data_dir) as api:
        model_id = api.get(f"/models/{model}")["id"]
        show_record(api.post("/deployments", {"model_id": model_id, "policy": policy}), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard deployments list",
    "steelyard deployments list --json",
    "steelyard deployments list --limit 500",
)
def list_deployments(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the deployments."""
    with connect(data_dir) as api:
        page = api.get("/deployments", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no deployments: steelyard deployments create MODEL")


@verb(
    verbs,
    "show",
    "steelyard deployments show dep_0193f0c2",
    "steelyard deployments show dep_0193f0c2 --json",
    "steelyard deployments show dep_0193f0c2 --data-dir /srv/steelyard",
)
def show(
    deployment: Annotated[str, typer.Argument(help="Deployment id: dep_…")],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show a deployment."""
    with connect(data_dir) as api:
        show_record(api.get(f"/deployments/{deployment}"), as_json=as_json)
