"""`steelyard parked …`: what the settler could not post, and what becomes of it."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, Yes, noun, verb
from app.cli.present import confirm, hint, show_page, show_record, show_rows

verbs = noun(
    "parked",
    "Records that the settler could not post: kept, not billed, their holds counted until resolved.",
    "steelyard parked list",
    "steelyard parked retry 17",
    "steelyard parked dismiss 17 --reason 'a test tenant without a price'",
)
COLUMNS = {
    "id": "id",
    "parked_at": "at",
    "request_id": "request",
    "reason": "reason",
    "charge.tenant_id": "tenant",
    "charge.cost": "cost",
    "charge.currency": "currency",
    "resolution": "resolution",
}
CONFLICTS = {"seen_at": "at", "request_id": "request", "incarnation_id": "incarnation"}
DAMAGES = {
    "found_at": "at",
    "incarnation_id": "incarnation",
    "file_offset": "offset",
    "byte_count": "bytes",
    "outstanding": "outstanding",
    "released_at": "released at",
}
Record = Annotated[int, typer.Argument(help="Its number, as `list` shows it.")]
Reason = Annotated[str, typer.Option(help="Why, for people; it is audited.")]


@verb(
    verbs,
    "list",
    "steelyard parked list",
    "steelyard parked list --resolved",
    "steelyard parked list --limit 200 --json",
)
def list_parked(
    *,
    resolved: Annotated[bool, typer.Option("--resolved", help="Those that were resolved.")] = False,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List records that wait for someone to look at them, newest first."""
    with connect(data_dir) as api:
        page = api.get("/parked-records", resolved=str(resolved).lower(), limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="nothing is parked")
    if page["data"] and not resolved:
        hint("once its cause is mended: steelyard parked retry ID")


@verb(
    verbs,
    "show",
    "steelyard parked show 17",
    "steelyard parked show 17 --json",
    "steelyard parked show 17 --data-dir /srv/steelyard",
)
def show(record: Record, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show one record: what it would have charged, what it holds, why it was parked."""
    with connect(data_dir) as api:
        found = api.get(f"/parked-records/{record}")
    show_record(found, as_json=as_json)


@verb(
    verbs,
    "retry",
    "steelyard parked retry 17",
    "steelyard parked retry 17 --json",
    "steelyard parked retry 17 --data-dir /srv/steelyard",
)
def retry(record: Record, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Post a record whose cause was mended; says what is still wrong with it if it can't be."""
    with connect(data_dir) as api:
        posted = api.post(f"/parked-records/{record}/retry")
    show_record(posted, as_json=as_json)


@verb(
    verbs,
    "dismiss",
    "steelyard parked dismiss 17 --reason 'a test tenant without a price'",
    "steelyard parked dismiss 17 --reason 'not ours' --yes",
    "steelyard parked dismiss 17 --reason 'not ours' --yes --json",
)
def dismiss(
    record: Record,
    *,
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Give a record up: it is never billed, and what it held is free again."""
    confirm(f"Dismiss parked record {record}? It will never be billed.", yes=yes)
    with connect(data_dir) as api:
        dismissed = api.post(f"/parked-records/{record}/dismiss", {"reason": reason})
    show_record(dismissed, as_json=as_json)


@verb(
    verbs,
    "conflicts",
    "steelyard parked conflicts",
    "steelyard parked conflicts --json",
    "steelyard parked conflicts --data-dir /srv/steelyard",
)
def list_conflicts(*, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List second settlements of a request that say something else; none is ever charged."""
    with connect(data_dir) as api:
        rows = api.get("/usage-conflicts")
    show_rows(rows, CONFLICTS, as_json=as_json, empty="no conflicts")


@verb(
    verbs,
    "damages",
    "steelyard parked damages",
    "steelyard parked damages --json",
    "steelyard parked damages --data-dir /srv/steelyard",
)
def list_damages(*, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List places where a journal was not what its writer wrote; copies lie in its quarantine folder."""
    with connect(data_dir) as api:
        rows = api.get("/journal-damages")
    show_rows(rows, DAMAGES, as_json=as_json, empty="no journal is damaged")


@verb(
    verbs,
    "release",
    "steelyard parked release inc_0193f0c2 --reason 'the disk was replaced'",
    "steelyard parked release inc_0193f0c2 --reason 'looked at' --yes",
    "steelyard parked release inc_0193f0c2 --reason 'looked at' --yes --json",
)
def release(
    incarnation: Annotated[str, typer.Argument(help="Incarnation id: inc_…, as `damages` shows it.")],
    *,
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Close an incarnation whose journal was damaged: its unused leases return."""
    confirm(f"Release {incarnation}? What it spent in the damaged part is never billed.", yes=yes)
    with connect(data_dir) as api:
        rows = api.post(f"/journal-damages/{incarnation}/release", {"reason": reason})
    show_rows(rows, DAMAGES, as_json=as_json)
