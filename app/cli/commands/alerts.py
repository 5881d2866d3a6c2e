"""`steelyard alerts …`: who is told when a limit is nearly used, where, and how that went."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.errors import usage_error
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, TenantOption, Yes, noun, verb
from app.cli.present import confirm, hint, show_page, show_record

verbs = noun(
    "alerts",
    "Thresholds of limits that were reached, and the webhooks and mailboxes that are told.",
    "steelyard alerts add https://hooks.example.com/steelyard",
    "steelyard alerts set --percent 80 --percent 100 --remaining 20",
    "steelyard alerts list",
)
ALERTS = {
    "at": "at",
    "scope_kind": "scope",
    "scope_name": "name",
    "window": "window",
    "kind": "kind",
    "threshold": "threshold",
    "used": "used",
    "limit": "limit",
    "unit": "unit",
    "currency": "currency",
    "id": "id",
}
ENDPOINTS = {"id": "id", "kind": "kind", "name": "name", "address": "address", "status": "status"}
RULES = {
    "id": "id",
    "scope_kind": "scope",
    "scope_id": "scope id",
    "what": "what",
    "window": "window",
    "percents": "percents",
    "remaining": "remaining",
}
DELIVERIES = {
    "id": "id",
    "created_at": "at",
    "alert_id": "alert",
    "endpoint_id": "endpoint",
    "status": "status",
    "attempts": "attempts",
    "last_error": "error",
    "next_at": "next try",
}
Endpoint = Annotated[str, typer.Argument(help="Endpoint id: aep_…")]


@verb(
    verbs,
    "list",
    "steelyard alerts list",
    "steelyard alerts list --tenant ten_0193f0c2 --limit 200",
    "steelyard alerts list --json",
)
def list_alerts(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List alerts, newest first."""
    with connect(data_dir) as api:
        page = api.get("/alerts", tenant_id=tenant, limit=limit, after=after)
    show_page(page, ALERTS, as_json=as_json, empty="no limit has reached a threshold")


@verb(
    verbs,
    "show",
    "steelyard alerts show alt_0193f0c2",
    "steelyard alerts show alt_0193f0c2 --json",
    "steelyard alerts show alt_0193f0c2 --data-dir /srv/steelyard",
)
def show(
    alert: Annotated[str, typer.Argument(help="Alert id: alt_…")],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show an alert with the numbers of its moment."""
    with connect(data_dir) as api:
        show_record(api.get(f"/alerts/{alert}"), as_json=as_json)


@verb(
    verbs,
    "add",
    "steelyard alerts add https://hooks.example.com/steelyard",
    "steelyard alerts add finance@example.com --name finance",
    "steelyard alerts add https://hooks.example.com/steelyard --tenant ten_0193f0c2 --json",
)
def add(
    address: Annotated[str, typer.Argument(help="An https URL or a mailbox.")],
    *,
    name: Annotated[str | None, typer.Option(help="What it is for; else its address.")] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add a webhook or a mailbox for a tenant's alerts; prints a webhook's secret, this once."""
    kind = "url" if "://" in address else "email"
    body = {kind: address} | ({"name": name} if name else {})
    with connect(data_dir) as api:
        made = api.post("/alert-endpoints", body | {"tenant_id": _tenant(api, tenant)})
    show_record(made, as_json=as_json)
    hint(f"try it: steelyard alerts test {made['id']}")
    if made.get("secret"):
        hint("the secret is shown this once: keep it now")


@verb(
    verbs,
    "endpoints",
    "steelyard alerts endpoints",
    "steelyard alerts endpoints --tenant ten_0193f0c2",
    "steelyard alerts endpoints --json",
)
def list_endpoints(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List where alerts go."""
    with connect(data_dir) as api:
        page = api.get("/alert-endpoints", tenant_id=tenant, limit=limit, after=after)
    show_page(page, ENDPOINTS, as_json=as_json, empty="nowhere: steelyard alerts add URL")


@verb(
    verbs,
    "test",
    "steelyard alerts test aep_0193f0c2",
    "steelyard alerts test aep_0193f0c2 --json",
    "steelyard alerts test aep_0193f0c2 --data-dir /srv/steelyard",
)
def send_test(endpoint: Endpoint, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send a test to an endpoint, within seconds."""
    with connect(data_dir) as api:
        delivery = api.post(f"/alert-endpoints/{endpoint}/test")
    show_record(delivery, as_json=as_json)
    hint(f"how it went: steelyard alerts deliveries --endpoint {endpoint}")


@verb(
    verbs,
    "disable",
    "steelyard alerts disable aep_0193f0c2",
    "steelyard alerts disable aep_0193f0c2 --yes",
    "steelyard alerts disable aep_0193f0c2 --yes --json",
)
def disable(
    endpoint: Endpoint, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Send nothing to an endpoint until it is enabled; what waits for it is dead."""
    confirm(f"Disable {endpoint}?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.patch(f"/alert-endpoints/{endpoint}", {"status": "disabled"}), as_json=as_json)


@verb(
    verbs,
    "enable",
    "steelyard alerts enable aep_0193f0c2",
    "steelyard alerts enable aep_0193f0c2 --json",
    "steelyard alerts enable aep_0193f0c2 --data-dir /srv/steelyard",
)
def enable(endpoint: Endpoint, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send alerts to an endpoint again."""
    with connect(data_dir) as api:
        show_record(api.patch(f"/alert-endpoints/{endpoint}", {"status": "active"}), as_json=as_json)


@verb(
    verbs,
    "remove",
    "steelyard alerts remove aep_0193f0c2",
    "steelyard alerts remove aep_0193f0c2 --yes",
    "steelyard alerts remove aep_0193f0c2 --yes --json",
)
def remove(
    endpoint: Endpoint, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Remove an endpoint and its secret, for good."""
    confirm(f"Remove {endpoint} and its secret?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.delete(f"/alert-endpoints/{endpoint}"), as_json=as_json)


@verb(
    verbs,
    "rules",
    "steelyard alerts rules",
    "steelyard alerts rules --tenant ten_0193f0c2",
    "steelyard alerts rules --json",
)
def list_rules(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List at which thresholds tenants are told; the most specific rule counts."""
    with connect(data_dir) as api:
        page = api.get("/alert-rules", tenant_id=tenant, limit=limit, after=after)
    show_page(page, RULES, as_json=as_json, empty="no rules: told at 50, 80 and 100 %")


@verb(
    verbs,
    "set",
    "steelyard alerts set --percent 80 --percent 100 --remaining 20",
    "steelyard alerts set --scope-kind task --percent 100",
    "steelyard alerts set --scope-kind project --scope prj_0193f0c2 --window month --silent",
)
def set_rule(
    *,
    tenant: TenantOption = None,
    scope_kind: Annotated[str | None, typer.Option(help="tenant, project, key or task; else all.")] = None,
    scope: Annotated[str | None, typer.Option(help="Its id; else all of the kind.")] = None,
    what: Annotated[str | None, typer.Option(help="picos (money), tokens, requests, …; else all.")] = None,
    window: Annotated[str | None, typer.Option(help="balance, day, week or month; else all.")] = None,
    percent: Annotated[list[int] | None, typer.Option(help="A share of the limit; repeat for more.")] = None,
    remaining: Annotated[str | None, typer.Option(help="Of the wallet: told below this rest.")] = None,
    silent: Annotated[bool, typer.Option("--silent", help="No thresholds at all.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Set the thresholds of some of a tenant's limits, in place of those of a rule for the same limits."""
    if silent is bool(percent or remaining):
        raise usage_error("say thresholds, or --silent", remedy="steelyard alerts set --percent 80")
    fits = {"scope_kind": scope_kind, "scope_id": scope, "what": what, "window": window}
    terms = {"percents": percent or [], "remaining": remaining}
    with connect(data_dir) as api:
        owner = _tenant(api, tenant)
        same = [
            rule
            for rule in api.rows("/alert-rules", tenant_id=owner)
            if all(rule[name] == value for name, value in fits.items())
        ]
        if same:
            rule = api.patch(f"/alert-rules/{same[0]['id']}", terms)
        else:
            rule = api.post("/alert-rules", {"tenant_id": owner, **fits, **terms})
    show_record(rule, as_json=as_json)


@verb(
    verbs,
    "unset",
    "steelyard alerts unset alr_0193f0c2",
    "steelyard alerts unset alr_0193f0c2 --json",
    "steelyard alerts unset alr_0193f0c2 --data-dir /srv/steelyard",
)
def unset_rule(
    rule: Annotated[str, typer.Argument(help="Rule id: alr_…, as `rules` shows it.")],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Remove a rule; what it fitted follows the next most specific one."""
    with connect(data_dir) as api:
        show_record(api.delete(f"/alert-rules/{rule}"), as_json=as_json)


@verb(
    verbs,
    "deliveries",
    "steelyard alerts deliveries --status dead",
    "steelyard alerts deliveries --endpoint aep_0193f0c2",
    "steelyard alerts deliveries --alert alt_0193f0c2 --json",
)
def list_deliveries(
    *,
    status: Annotated[str | None, typer.Option(help="pending, delivered or dead.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Of this endpoint.")] = None,
    alert: Annotated[str | None, typer.Option(help="Of this alert.")] = None,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List how alerts were delivered, newest first, with the last error of each."""
    only = {"status": status, "endpoint_id": endpoint, "alert_id": alert, "tenant_id": tenant}
    with connect(data_dir) as api:
        page = api.get("/alert-deliveries", **only, limit=limit, after=after)
    show_page(page, DELIVERIES, as_json=as_json, empty="nothing was to be delivered")
    if any(row["status"] == "dead" for row in page["data"]):
        hint("once its cause is mended: steelyard alerts retry ID")


@verb(
    verbs,
    "retry",
    "steelyard alerts retry ald_0193f0c2",
    "steelyard alerts retry ald_0193f0c2 --json",
    "steelyard alerts retry ald_0193f0c2 --data-dir /srv/steelyard",
)
def retry(
    delivery: Annotated[str, typer.Argument(help="Delivery id: ald_…, as `deliveries` shows it.")],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Try a dead delivery again, as if it were new."""
    with connect(data_dir) as api:
        show_record(api.post(f"/alert-deliveries/{delivery}/retry"), as_json=as_json)


def _tenant(api: Api, given: str | None) -> Any:
    return given or api.only("/tenants", noun="tenant")
