"""`steelyard usage …`: what was consumed, and what it cost."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from app.cli.api import Api, connect
from app.cli.errors import usage_error
from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, TenantOption, noun, verb
from app.cli.present import find, hint, print_json, show_rows
from app.core.money import format_picos, parse_picos

verbs = noun(
    "usage",
    "Tokens by class and their exact cost. Ranges are half-open and cut in the tenant's zone.",
    "steelyard usage show",
    "steelyard usage show --from 2026-11-01 --to 2026-12-01 --by key",
    "steelyard usage export --from 2026-11-01 > november.csv",
)
COUNTS = ("requests", "unknown_requests", "input", "input_cached", "input_cache_write", "output")
HEADINGS = {
    "requests": "requests",
    "unknown_requests": "unknown",
    "input": "input",
    "input_cached": "cached",
    "input_cache_write": "cache write",
    "output": "output",
    "cost": "cost",
    "currency": "currency",
}
BILLED = ("billed_input", "billed_input_cached", "billed_input_cache_write", "billed_output")
GROUPS = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "price_version": "price_version_id",
    "usage_source": "usage_source",
}

By = Annotated[
    str,
    typer.Option(
        "--by", help="tenant, project, key, model, price_version, usage_source; several with commas."
    ),
]
From = Annotated[str | None, typer.Option("--from", help="Day or instant of the first; else today.")]
To = Annotated[str | None, typer.Option("--to", help="Day or instant after the last; else now.")]
Zone = Annotated[str | None, typer.Option("--zone", help="IANA zone of days; else the tenant's.")]


@verb(
    verbs,
    "show",
    "steelyard usage show",
    "steelyard usage show --from 2026-11-01 --to 2026-12-01 --by project,model",
    "steelyard usage show --json",
)
def show(
    *,
    by: By = "model",
    first: From = None,
    end: To = None,
    zone: Zone = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show today's usage by model, or any range by any grouping, with totals."""
    with connect(data_dir) as api:
        span = _span(api, first, end=end, zone=zone, tenant=tenant)
        rows = list(api.rows("/usage", bucket="none", group_by=by, tenant_id=tenant, **span))
    totals = _totals(rows)
    if as_json:
        print_json({**span, "data": rows, "totals": totals})
        return
    names = _names(by)
    columns = {**{name: name.removesuffix("_id") for name in names}, **HEADINGS}
    lines = [*rows, *({names[0]: "total", **total} for total in totals)] if rows else []
    show_rows(lines, columns, as_json=False, empty="no usage in this range")
    hint(f"{span['from']} → {span['to'] or 'now'}")


@verb(
    verbs,
    "export",
    "steelyard usage export > today.csv",
    "steelyard usage export --from 2026-11-01 --to 2026-12-01 --bucket 1d > november.csv",
    "steelyard usage export --by project,key,model --bucket 1h > hours.csv",
)
def export(
    *,
    by: By = "model",
    first: From = None,
    end: To = None,
    zone: Zone = None,
    bucket: Annotated[str, typer.Option(help="15m, 1h, 1d or none.")] = "1d",
    tenant: TenantOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Write usage as CSV on standard output; its sums are those of `usage show`."""
    names = ["start", "end", *_names(by), *COUNTS, "reasoning", *BILLED, "cost", "currency"]
    with connect(data_dir) as api:
        span = _span(api, first, end=end, zone=zone, tenant=tenant)
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(names)
        for row in api.rows("/usage", bucket=bucket, group_by=by, tenant_id=tenant, **span):
            table.writerow([_guarded(find(row, name)) for name in names])


def _names(by: str) -> list[str]:
    groups = [group.strip() for group in by.split(",") if group.strip()]
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        raise usage_error(
            f"can't group by {', '.join(unknown) or 'nothing'}", remedy=f"--by {'|'.join(GROUPS)}"
        )
    return [GROUPS[group] for group in groups]


def _span(
    api: Api, first: str | None, *, end: str | None, zone: str | None, tenant: str | None
) -> dict[str, Any]:
    """The range asked for as instants; days are cut in the given zone, else in that of the tenant."""
    name = zone or _tenant_zone(api, tenant)
    try:
        place = ZoneInfo(name)
        start = (
            _instant(first, place)
            if first
            else datetime.now(place).replace(hour=0, minute=0, second=0, microsecond=0)
        )
        return {
            "from": start.isoformat(),
            "to": _instant(end, place).isoformat() if end else None,
            "timezone": name,
        }
    except (ValueError, ZoneInfoNotFoundError) as error:
        raise usage_error(
            f"not a range of time: {error}", remedy="--from 2026-11-01 --zone Europe/Berlin"
        ) from error


def _instant(text: str, zone: ZoneInfo) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _tenant_zone(api: Api, tenant: str | None) -> str:
    if tenant:
        return str(api.get(f"/tenants/{tenant}")["timezone"])
    zones = {str(row["timezone"]) for row in api.get("/tenants", limit=200)["data"]}
    return zones.pop() if len(zones) == 1 else "UTC"


def _totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The exact sums of the rows, one for each currency."""
    totals: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = totals.setdefault(row["currency"], dict.fromkeys((*COUNTS, "cost"), 0))
        for name in COUNTS:
            total[name] += row[name]
        total["cost"] += parse_picos(row["cost"])
    return [
        {**total, "cost": format_picos(total["cost"]), "currency": currency}
        for currency, total in sorted(totals.items())
    ]


def _guarded(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
