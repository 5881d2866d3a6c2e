"""`steelyard requests …`: what became of each request, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.explain import show_explanation
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, TenantOption, noun, verb
from app.cli.present import hint, print_json, show_page

verbs = noun(
    "requests",
    "What became of each request: outcome, tokens, cost, and why.",
    "steelyard requests list",
    "steelyard requests list --outcome refused",
    "steelyard requests explain req_0193f0c2",
)
COLUMNS = {
    "admitted_at": "at",
    "request_id": "request",
    "model": "model",
    "outcome": "outcome",
    "reason": "reason",
    "usage.input": "input",
    "usage.input_cached": "cached",
    "usage.output": "output",
    "cost": "cost",
    "currency": "currency",
    "ttft_ms": "ttft ms",
    "duration_ms": "total ms",
}


@verb(
    verbs,
    "list",
    "steelyard requests list",
    "steelyard requests list --model smollm2-135m-instruct --limit 200",
    "steelyard requests list --outcome client_cancelled --json",
)
def list_requests(
    *,
    tenant: TenantOption = None,
    key: Annotated[str | None, typer.Option(help="Only of this key id.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only with this outcome.")] = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the newest requests."""
    filters = {"tenant_id": tenant, "key_id": key, "model": model, "outcome": outcome}
    with connect(data_dir) as api:
        page = api.get("/requests", limit=limit, after=after, **filters)
    show_page(page, COLUMNS, as_json=as_json, empty="no requests yet")
    if page["data"]:
        hint("why: steelyard requests explain REQUEST")


@verb(
    verbs,
    "explain",
    "steelyard requests explain req_0193f0c2",
    "steelyard requests explain req_0193f0c2 --json",
    "steelyard requests explain req_0193f0c2 --data-dir /srv/steelyard",
)
def explain(
    request: Annotated[
        str, typer.Argument(help="Request id: req_…, in the header x-request-id of an answer.")
    ],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say everything about one request: limits, hold, decision, attempts, tokens, price, ledger."""
    with connect(data_dir) as api:
        explanation = api.get(f"/requests/{request}")
    if as_json:
        print_json(explanation)
    else:
        show_explanation(explanation)
