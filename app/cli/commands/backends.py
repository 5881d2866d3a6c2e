"""`steelyard backends …`: engine processes with an address."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, Yes, noun, verb
from app.cli.present import confirm, show_page, show_record

verbs = noun(
    "backends",
    "Engine processes with an address.",
    "steelyard backends list",
    "steelyard backends add http://10.0.0.7:8000 --engine vllm --served-model Qwen/Qwen3-8B",
    "steelyard backends drain bck_0193f0c2",
)
COLUMNS = {
    "id": "id",
    "base_url": "address",
    "engine": "engine",
    "served_model": "serves",
    "max_concurrent": "most at once",
    "weight": "weight",
    "status": "status",
}
BackendId = Annotated[str, typer.Argument(help="Backend id: bck_…")]


@verb(
    verbs,
    "add",
    "steelyard backends add http://10.0.0.7:8000 --engine vllm --served-model Qwen/Qwen3-8B",
    "steelyard backends add http://10.0.0.7:8000 --engine vllm --served-model Qwen/Qwen3-8B --test",
    "steelyard backends add http://127.0.0.1:8090 --engine llama-server --served-model smollm2",
)
def add(
    base_url: Annotated[str, typer.Argument(help="Address of the engine: http://host:port")],
    *,
    engine: Annotated[str, typer.Option(help="vllm, llama-server, sglang, openai or simulator.")],
    served_model: Annotated[str, typer.Option(help="The model's name at the engine.")],
    deployment: Annotated[
        str | None, typer.Option(help="Deployment id; may be left out if there is one.")
    ] = None,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Most requests at once.")] = 64,
    weight: Annotated[int, typer.Option(min=0, max=1000, help="Share of the load, 0 to 1000.")] = 100,
    test: Annotated[bool, typer.Option("--test", help="Ask the engine first whether it is well.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add an engine to a deployment."""
    with connect(data_dir) as api:
        body = {
            "deployment_id": deployment or api.only("/deployments", noun="deployment"),
            "base_url": base_url,
            "engine": engine,
            "served_model": served_model,
            "max_concurrent": max_concurrent,
            "weight": weight,
        }
        show_record(api.post("/backends", body, query={"test": True} if test else None), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard backends list",
    "steelyard backends list --json",
    "steelyard backends list --limit 500",
)
def list_backends(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the backends."""
    with connect(data_dir) as api:
        page = api.get("/backends", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no backends: steelyard backends add URL")


@verb(
    verbs,
    "show",
    "steelyard backends show bck_0193f0c2",
    "steelyard backends show bck_0193f0c2 --json",
    "steelyard backends show bck_0193f0c2 --data-dir /srv/steelyard",
)
def show(backend: BackendId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a backend."""
    with connect(data_dir) as api:
        show_record(api.get(f"/backends/{backend}"), as_json=as_json)


@verb(
    verbs,
    "drain",
    "steelyard backends drain bck_0193f0c2",
    "steelyard backends drain bck_0193f0c2 --json",
    "steelyard backends drain bck_0193f0c2 --data-dir /srv/steelyard",
)
def drain(backend: BackendId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send a backend no new requests; those that run there go on to their end."""
    with connect(data_dir) as api:
        show_record(api.post(f"/backends/{backend}/drain"), as_json=as_json)


@verb(
    verbs,
    "undrain",
    "steelyard backends undrain bck_0193f0c2",
    "steelyard backends undrain bck_0193f0c2 --json",
    "steelyard backends undrain bck_0193f0c2 --data-dir /srv/steelyard",
)
def undrain(backend: BackendId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send a drained backend requests again."""
    with connect(data_dir) as api:
        show_record(api.post(f"/backends/{backend}/undrain"), as_json=as_json)


@verb(
    verbs,
    "remove",
    "steelyard backends remove bck_0193f0c2",
    "steelyard backends remove bck_0193f0c2 --yes",
    "steelyard backends remove bck_0193f0c2 --yes --json",
)
def remove(
    backend: BackendId, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Take a backend out of its deployment; its past stays."""
    confirm(f"Take {backend} out of its deployment?", yes=yes)
    with connect(data_dir) as api:
        removed = api.delete(f"/backends/{backend}")
    show_record(removed or {"id": backend, "status": "removed"}, as_json=as_json)
