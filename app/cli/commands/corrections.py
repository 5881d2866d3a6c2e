"""`steelyard corrections …`: money given back or charged for single requests."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.api import connect
from app.cli.errors import usage_error
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    IdempotencyKey,
    Limit,
    TenantOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, idempotency_key, show_page, show_record

verbs = noun(
    "corrections",
    "Money given back or charged for single requests, as rows of their own: what was recorded stands.",
    "steelyard corrections list",
    "steelyard corrections create req_0193f0c2 --amount 0.25 --reason 'answer was cut'",
    "steelyard corrections create req_0193f0c2 --tokens output=-120 --reason 'counted twice' --yes",
)
COLUMNS = {
    "at": "at",
    "id": "id",
    "request_id": "request",
    "amount": "amount",
    "currency": "currency",
    "reason": "reason",
    "reference": "reference",
}


@verb(
    verbs,
    "create",
    "steelyard corrections create req_0193f0c2 --amount 0.25 --reason 'answer was cut'",
    "steelyard corrections create req_0193f0c2 --amount -0.10 --reason 'counted too little' --yes",
    "steelyard corrections create req_0193f0c2 --tokens output=-120 --reason 'counted twice' --yes --json",
)
def create(
    request: Annotated[str, typer.Argument(help="Request id: req_….")],
    *,
    reason: Annotated[str, typer.Option(help="Why, for people.")],
    amount: Annotated[
        str | None,
        typer.Option(help="Decimal; more than zero is given back, less is charged. Else the tokens' worth."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(help="CLASS=CHANGE of the billed tokens, e.g. output=-120; repeat for more."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Its name in your books; else the idempotency key.")
    ] = None,
    yes: Yes = False,
    key: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Correct what a request costs: between nothing and what it was held for."""
    body: dict[str, Any] = {"reason": reason, "amount": amount, "reference": reference}
    if tokens:
        body["tokens"] = dict(map(_change, tokens))
    if not (amount or tokens):
        raise usage_error("nothing is corrected", remedy="name --amount or --tokens")
    with connect(data_dir) as api:
        what = amount or ", ".join(tokens or ())
        confirm(f"Correct {request} by {what}?", yes=yes)
        key = idempotency_key(key)
        sent = {name: value for name, value in body.items() if value is not None}
        made = api.post(f"/requests/{request}/corrections", sent, idempotency_key=key)
    show_record(made, as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard corrections list",
    "steelyard corrections list --request req_0193f0c2",
    "steelyard corrections list --tenant ten_0193f0c2 --json",
)
def list_corrections(
    *,
    tenant: TenantOption = None,
    request: Annotated[str | None, typer.Option(help="Only of this request id.")] = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List corrections, newest first."""
    with connect(data_dir) as api:
        page = api.get("/corrections", tenant_id=tenant, request_id=request, limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no corrections")


def _change(text: str) -> tuple[str, int]:
    """(class, change) of `output=-120`."""
    meter, _, change = text.partition("=")
    try:
        return meter, int(change)
    except ValueError:
        raise usage_error(
            f"{text!r} is no change of tokens", remedy="write CLASS=CHANGE, e.g. output=-120"
        ) from None
