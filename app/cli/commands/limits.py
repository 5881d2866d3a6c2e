"""`steelyard limits …`: what holds for whom and why, what stands in a plan's place, and what would be if."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.errors import usage_error
from app.cli.limit_terms import TERM_HELP, instant, local, parse_limit, write_limit, zone_of
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
from app.cli.present import confirm, hint, idempotency_key, print_json, show_page, show_record, show_rows

verbs = noun(
    "limits",
    "Budgets, rates, requests at once: what holds for whom, where it comes from, and how it stands.",
    "steelyard limits show --key key_0193f0c2",
    "steelyard limits try tokens/minute=40000 --key key_0193f0c2",
    "steelyard limits set tokens/minute=80000 --key key_0193f0c2 --expires 2026-12-31 --reason 'launch week'",
)
STANDING = {
    "scope": "scope",
    "limit": "limit",
    "amount": "amount",
    "unit": "unit",
    "used": "used",
    "leased": "leased",
    "available": "available",
    "peak": "peak",
    "refused": "refused",
    "resets": "resets",
    "source": "from",
}
OVERRIDES = {
    "id": "id",
    "scope": "scope",
    "limit": "limit",
    "amount": "amount",
    "unit": "unit",
    "from": "from",
    "until": "until",
    "reason": "reason",
}
DAYS = {"day": "day", "requests": "requests", "refused": "refused"}
Project = Annotated[str | None, typer.Option("--project", help="For this project.")]
Key = Annotated[str | None, typer.Option("--key", help="For this key.")]
Term = Annotated[str, typer.Argument(help=TERM_HELP)]


@verb(
    verbs,
    "show",
    "steelyard limits show --tenant ten_0193f0c2",
    "steelyard limits show --key key_0193f0c2 --model qwen3-8b",
    "steelyard limits show --project prj_0193f0c2 --json",
)
def show(
    *,
    tenant: TenantOption = None,
    project: Project = None,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="Only what a request for this model has.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show the limits that hold for a tenant, project or key, where each comes from, and how it stands."""
    with connect(data_dir) as api:
        found = api.get("/limits", **_place(api, tenant, project=project, key=key), model=model)
    if as_json:
        print_json(found)
        return
    zone = zone_of(found["timezone"])
    rows = [
        {
            **row,
            "scope": f"{row['scope_kind']} {row['scope_name'] or row['scope_id']}",
            "limit": write_limit(row),
            "amount": row["amount"] if row["amount"] is not None else "no limit",
            "peak": (row["peak"] or {}).get("amount"),
            "refused": row["refused"]["count"],
            "resets": local(row["resets_at"], zone),
            "source": _source(row["source"], until=local(row["source"]["until"], zone)),
        }
        for row in found["data"]
    ]
    show_rows(rows, STANDING, as_json=False)
    hint(f"times of {found['timezone']}; peaks since {local(found['peaks_since'], zone)}")
    if not found["peaks_known"]:
        hint("no peaks: there are too many requests to look through")
    if all(row["source"]["kind"] == "wallet" for row in found["data"]):
        hint("nothing but the wallet limits it: steelyard plans assign PLAN, or steelyard limits set")


@verb(
    verbs,
    "set",
    "steelyard limits set tokens/minute=80000 --key key_0193f0c2 --expires 2026-12-31 --reason 'launch week'",
    "steelyard limits set money/month=25 --project prj_0193f0c2 --reason 'order 4711' --yes",
    "steelyard limits set concurrent=none --reason 'load test' --expires 2026-12-02T18:00",
)
def set_limit(
    term: Term,
    *,
    tenant: TenantOption = None,
    project: Project = None,
    key: Key = None,
    reason: Annotated[str, typer.Option(help="Why; the limit is shown with it.")],
    starts: Annotated[str | None, typer.Option(help="Day or instant from which it holds; else now.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="Day or instant at which it ends by itself; else it stays.")
    ] = None,
    yes: Yes = False,
    key_of_write: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Set a limit in a plan's place, in every gateway within a second; `=none` is no limit."""
    terms = parse_limit(term, with_level=False)
    with connect(data_dir) as api:
        scope_kind, scope_id, owner = _scope(api, tenant, project=project, key=key)
        zone = zone_of(owner["timezone"])
        body = {
            **terms,
            "scope_kind": scope_kind,
            "scope_id": scope_id,
            "reason": reason,
            "effective_from": instant(starts, zone),
            "expires_at": instant(expires, zone),
        }
        confirm(f"Limit {scope_kind} {scope_id} to {term}?", yes=yes)
        name = idempotency_key(key_of_write)
        made = api.post(f"/tenants/{owner['id']}/limit-overrides", body, idempotency_key=name)
    show_record(made, as_json=as_json)
    hint(f"to end it: steelyard limits unset {made['id']}")


@verb(
    verbs,
    "unset",
    "steelyard limits unset ovr_0193f0c2",
    "steelyard limits unset ovr_0193f0c2 --yes",
    "steelyard limits unset ovr_0193f0c2 --yes --json",
)
def unset(
    override: Annotated[str, typer.Argument(help="Override id: ovr_…, as `overrides` shows it.")],
    *,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End what `set` made: the plan's limit holds again, or none."""
    confirm(f"End {override}?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.post(f"/limit-overrides/{override}/revoke"), as_json=as_json)


@verb(
    verbs,
    "overrides",
    "steelyard limits overrides",
    "steelyard limits overrides --tenant ten_0193f0c2 --ended",
    "steelyard limits overrides --json",
)
def list_overrides(
    *,
    tenant: TenantOption = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List what `set` made, in a plan's place."""
    with connect(data_dir) as api:
        owner = _tenant(api, tenant)
        page = api.get(
            f"/tenants/{owner['id']}/limit-overrides", ended=ended or None, limit=limit, after=after
        )
    zone = zone_of(owner["timezone"])
    if not as_json:
        page["data"] = [
            {
                **row,
                "scope": f"{row['scope_kind']} {row['scope_id']}",
                "limit": write_limit(row),
                "amount": row["amount"] if row["amount"] is not None else "no limit",
                "from": local(row["effective_from"], zone),
                "until": local(row["revoked_at"] or row["expires_at"], zone),
            }
            for row in page["data"]
        ]
    show_page(page, OVERRIDES, as_json=as_json, empty="none: the plan's limits hold")


@verb(
    verbs,
    "try",
    "steelyard limits try tokens/minute=40000 --key key_0193f0c2",
    "steelyard limits try money/month=25 --project prj_0193f0c2 --from 2026-11-01 --to 2026-12-01",
    "steelyard limits try requests/minute=60,burst=10 --tenant ten_0193f0c2 --json",
)
def try_limit(
    term: Term,
    *,
    tenant: TenantOption = None,
    project: Project = None,
    key: Key = None,
    first: Annotated[
        str | None, typer.Option("--from", help="Day or instant of the first; else a week ago.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Day or instant after the last; else now.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say which requests of the past a limit would have refused. Changes nothing."""
    terms = parse_limit(term, with_level=False)
    if terms["amount"] is None:
        raise usage_error("no limit refuses nothing", remedy="steelyard limits try tokens/minute=40000")
    with connect(data_dir) as api:
        scope_kind, scope_id, owner = _scope(api, tenant, project=project, key=key)
        zone = zone_of(owner["timezone"])
        span = {"from": instant(first, zone), "to": instant(end, zone)}
        found = api.post("/limits/dry-run", {**terms, f"{scope_kind}_id": scope_id, **span})
    if as_json:
        print_json(found)
        return
    print(f"{found['says']}, {local(found['start'], zone)} → {local(found['end'], zone)} {found['timezone']}")
    show_rows(
        [row for row in found["days"] if row["requests"]], DAYS, as_json=False, empty="nothing was asked"
    )
    for each in found["first"]:
        hint(f"refused: {each['request_id']} at {local(each['at'], zone)}, {each['needed']}")
    for note in found["notes"]:
        hint(f"note: {note}")


def _place(api: Api, tenant: str | None, *, project: str | None, key: str | None) -> dict[str, str | None]:
    """What is asked for; with neither project nor key, the tenant, if there is one."""
    if project is None and key is None:
        return {"tenant_id": tenant or api.only("/tenants", noun="tenant")}
    return {"project_id": project, "key_id": key} if key is None else {"key_id": key}


def _scope(
    api: Api, tenant: str | None, *, project: str | None, key: str | None
) -> tuple[str, str, Mapping[str, Any]]:
    """Kind and id of what a limit is for, and its tenant."""
    if key is not None:
        return "key", key, _tenant(api, api.get(f"/keys/{key}")["tenant_id"])
    if project is not None:
        return "project", project, _tenant(api, api.get(f"/projects/{project}")["tenant_id"])
    owner = _tenant(api, tenant)
    return "tenant", owner["id"], owner


def _tenant(api: Api, given: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = api.get(f"/tenants/{given or api.only('/tenants', noun='tenant')}")
    return found


def _source(source: Mapping[str, Any], *, until: str | None) -> str:
    named = source["kind"] if source["kind"] == "wallet" else f"{source['kind']} {source['name']}"
    return f"{named} until {until}" if until else str(named)
