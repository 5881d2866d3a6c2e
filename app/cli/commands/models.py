"""`steelyard models …`: what clients may ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, noun, verb
from app.cli.present import show_page, show_record

verbs = noun(
    "models",
    "The catalogue: what clients may ask for, with its limits.",
    "steelyard models list",
    "steelyard models create qwen3-8b --context 32768 --max-output 8192",
    "steelyard models publish qwen3-8b",
)
COLUMNS = {
    "id": "id",
    "name": "name",
    "context_limit": "context",
    "max_output_tokens": "max output",
    "status": "status",
}
Model = Annotated[str, typer.Argument(help="Model id or name.")]


@verb(
    verbs,
    "create",
    "steelyard models create qwen3-8b --context 32768 --max-output 8192",
    "steelyard models create qwen3-8b --context 32768 --max-output 8192 --default-output 1024",
    "steelyard models create qwen3-8b --context 32768 --max-output 8192 --json",
)
def create(
    name: Annotated[str, typer.Argument(help="Name that clients send.")],
    *,
    context: Annotated[int, typer.Option(min=1, help="Most tokens of input and output together.")],
    max_output: Annotated[int, typer.Option(min=1, help="Most output tokens of one choice.")],
    default_output: Annotated[
        int | None, typer.Option(min=1, help="Output limit if a client names none.")
    ] = None,
    display_name: Annotated[str, typer.Option(help="Name for people.")] = "",
    tokenizer: Annotated[
        str | None, typer.Option(help="Path of its tokenizer.json on the gateways' machines.")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add a model to the catalogue, as a draft."""
    body = {
        "name": name,
        "display_name": display_name,
        "context_limit": context,
        "max_output_tokens": max_output,
        "default_output_tokens": default_output or max_output,
    }
    if tokenizer is not None:
        body["tokenizer"] = tokenizer
    with connect(data_dir) as api:
        show_record(api.post("/models", body), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard models list",
    "steelyard models list --json",
    "steelyard models list --limit 500",
)
def list_models(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the models of the catalogue."""
    with connect(data_dir) as api:
        page = api.get("/models", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no models: steelyard models create NAME")


@verb(
    verbs,
    "show",
    "steelyard models show qwen3-8b",
    "steelyard models show mdl_0193f0c2",
    "steelyard models show qwen3-8b --json",
)
def show(model: Model, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a model."""
    with connect(data_dir) as api:
        show_record(api.get(f"/models/{model}"), as_json=as_json)


@verb(
    verbs,
    "tokenizer",
    "steelyard models tokenizer qwen3-8b /srv/models/qwen3-8b/tokenizer.json",
    "steelyard models tokenizer qwen3-8b --none",
    "steelyard models tokenizer qwen3-8b /srv/models/qwen3-8b/tokenizer.json --json",
)
def tokenizer(
    model: Model,
    path: Annotated[str | None, typer.Argument(help="Its tokenizer.json on the gateways' machines.")] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="It has none.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Set a model's own tokenizer: it counts what an engine that reports only at the end leaves uncounted."""
    if none is (path is not None):
        raise typer.BadParameter("give a path, or --none")
    with connect(data_dir) as api:
        show_record(api.patch(f"/models/{model}", {"tokenizer": path}), as_json=as_json)


@verb(
    verbs,
    "publish",
    "steelyard models publish qwen3-8b",
    "steelyard models publish mdl_0193f0c2",
    "steelyard models publish qwen3-8b --json",
)
def publish(model: Model, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Offer a model to clients. Refused while a class of its tokens has no price."""
    with connect(data_dir) as api:
        show_record(api.post(f"/models/{model}/publish"), as_json=as_json)
