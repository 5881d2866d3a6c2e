"""`steelyard tenants …`: who pays."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, Yes, noun, verb
from app.cli.present import confirm, show_page, show_record

verbs = noun(
    "tenants",
    "Who pays: each has a currency, a time zone, projects and a wallet.",
    "steelyard tenants list",
    "steelyard tenants create Acme --currency EUR --timezone Europe/Berlin",
    "steelyard tenants show ten_0193f0c2",
)
COLUMNS = {"id": "id", "name": "name", "currency": "currency", "timezone": "time zone", "status": "status"}
TenantId = Annotated[str, typer.Argument(help="Tenant id: ten_…")]


@verb(
    verbs,
    "create",
    "steelyard tenants create Acme",
    "steelyard tenants create Acme --currency CNY --timezone Asia/Shanghai",
    "steelyard tenants create Acme --json",
)
def create(
    name: Annotated[str, typer.Argument(help="Name for people.")],
    *,
    currency: Annotated[str, typer.Option(help="ISO 4217 code of what it pays in.")] = "USD",
    timezone: Annotated[str, typer.Option(help="IANA zone in which its days and months are cut.")] = "UTC",
    price_book: Annotated[
        str | None, typer.Option(help="Price book id; else the default of its currency.")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create a tenant and its wallet."""
    body = {"name": name, "currency": currency, "timezone": timezone}
    if price_book:
        body["price_book_id"] = price_book
    with connect(data_dir) as api:
        show_record(api.post("/tenants", body), as_json=as_json)


@verb(
    verbs,
    "list",
    "steelyard tenants list",
    "steelyard tenants list --json",
    "steelyard tenants list --limit 500",
)
def list_tenants(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the tenants that you may see."""
    with connect(data_dir) as api:
        page = api.get("/tenants", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="no tenants: steelyard tenants create NAME")


@verb(
    verbs,
    "show",
    "steelyard tenants show ten_0193f0c2",
    "steelyard tenants show ten_0193f0c2 --json",
    "steelyard tenants show ten_0193f0c2 --data-dir /srv/steelyard",
)
def show(tenant: TenantId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a tenant."""
    with connect(data_dir) as api:
        show_record(api.get(f"/tenants/{tenant}"), as_json=as_json)


@verb(
    verbs,
    "suspend",
    "steelyard tenants suspend ten_0193f0c2",
    "steelyard tenants suspend ten_0193f0c2 --cut --yes",
    "steelyard tenants suspend ten_0193f0c2 --yes --json",
)
def suspend(
    tenant: TenantId,
    *,
    cut: Annotated[
        bool | None,
        typer.Option("--cut/--finish", help="Cut what runs within a second, or let it end; else as before."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Refuse all new requests of a tenant until it is resumed."""
    confirm(f"Refuse all new requests of {tenant}?", yes=yes)
    terms = {} if cut is None else {"on_suspend": "cut" if cut else "finish"}
    with connect(data_dir) as api:
        show_record(api.patch(f"/tenants/{tenant}", {"status": "suspended"} | terms), as_json=as_json)


@verb(
    verbs,
    "resume",
    "steelyard tenants resume ten_0193f0c2",
    "steelyard tenants resume ten_0193f0c2 --json",
    "steelyard tenants resume ten_0193f0c2 --data-dir /srv/steelyard",
)
def resume(tenant: TenantId, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Serve a suspended tenant again."""
    with connect(data_dir) as api:
        show_record(api.patch(f"/tenants/{tenant}", {"status": "active"}), as_json=as_json)
