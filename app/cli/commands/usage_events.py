"""`steelyard usage events | heads`: the lines that `steelyard verify events` checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.commands.usage import verbs
from app.cli.errors import CommandFailed, ExitCode
from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, TenantOption, verb
from app.cli.present import hint, show_rows
from app.cli.progress import progress

EVENTS = "/v1/usage/events"
_EACH = 500
_PAGE_END = b'"object":"usage.page"'
_HEADS = {"day": "day", "sequence": "lines", "hash": "hash", "open": "open"}

FromDay = Annotated[
    str | None, typer.Option("--from", help="First day (UTC, of the chain), or first moment of admission.")
]
ToDay = Annotated[str | None, typer.Option("--to", help="Day or moment after the last; else all there is.")]


@verb(
    verbs,
    "events",
    "steelyard usage events --from 2026-11-01 --to 2026-12-01 > november.ndjson",
    "steelyard usage events --project prj_0193f0c2 --withheld > project.ndjson",
    "steelyard usage events --model small --from 2026-11-03T10:00:00Z > since-ten.ndjson",
)
def events(
    *,
    first: FromDay = None,
    end: ToDay = None,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only of this API key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only of this model.")] = None,
    withheld: Annotated[
        bool, typer.Option("--withheld", help="Show what is left out by its digest, to follow the chain.")
    ] = False,
    tenant: TenantOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Write a tenant's usage events, a line of JSON each, on standard output; `verify events` checks them."""
    with connect(data_dir) as api:
        tenant = tenant or _only_tenant(api)
        only = {"project_id": project, "key_id": key, "model": model, "withheld": withheld or None}
        query = {"from": first, "to": end, "tenant_id": tenant, **only, "limit": 100_000}
        total = None if any(only.values()) else _amount(api, first, end=end, tenant=tenant)
        _write(_pages(api, query), total=total)


@verb(
    verbs,
    "heads",
    "steelyard usage heads",
    "steelyard usage heads --json > heads.json",
    "steelyard usage heads --from 2026-11-01 --to 2026-12-01",
)
def heads(
    *,
    first: Annotated[str | None, typer.Option("--from", help="First day (UTC).")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Day after the last.")] = None,
    tenant: TenantOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show the last hash of each day. Keep them: `verify events --heads` finds what was redone."""
    with connect(data_dir) as api:
        found = _heads(api, first, end=end, tenant=tenant or _only_tenant(api))
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    show_rows(found["data"], _HEADS, as_json=False, empty="no day has lines yet")
    hint("keep them: steelyard usage heads --json > heads.json")


def _write(lines: Iterator[bytes], *, total: int | None) -> None:
    number = 0
    with progress("lines", total=total) as advance:
        for number, line in enumerate(lines, start=1):
            sys.stdout.buffer.write(line + b"\n")
            if number % _EACH == 0:
                advance(_EACH)
    sys.stdout.buffer.flush()
    if number == 0:
        hint("no events in this range")


def _only_tenant(api: Api) -> str:
    return api.only("/tenants", noun="tenant")


def _heads(api: Api, first: str | None, *, end: str | None, tenant: str) -> dict[str, Any]:
    query = {"from": first, "to": end, "tenant_id": tenant}
    return dict(json.loads(b"".join(api.lines(f"{EVENTS}/heads", **query))))


def _amount(api: Api, first: str | None, *, end: str | None, tenant: str) -> int | None:
    """How many lines whole days have; None if the range is cut by moments."""
    if any(edge is not None and len(edge) != len("2026-12-01") for edge in (first, end)):
        return None
    return sum(int(head["sequence"]) for head in _heads(api, first, end=end, tenant=tenant)["data"])


def _pages(api: Api, query: dict[str, Any]) -> Iterator[bytes]:
    """All lines, page after page, without the pages' ends. Raises CommandFailed if a page has no end."""
    after: str | None = None
    while True:
        last = b""
        for line in api.lines(EVENTS, **query, after=after):
            last = line
            if _PAGE_END not in line:
                yield line
        if _PAGE_END not in last:
            raise CommandFailed(
                "unreachable",
                "the download broke off",
                exit_code=ExitCode.UNREACHABLE,
                why="the last page has no end",
                remedy="repeat it",
            )
        after = json.loads(last)["next"]
        if after is None:
            return
