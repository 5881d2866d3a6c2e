"""`steelyard audit …`: who changed what."""

from __future__ import annotations

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, After, AsJson, DataDir, Limit, noun, verb
from app.cli.present import show_page

verbs: typer.Typer = noun(
    "audit",
    "The audit log: who changed what, before and after; append-only and hash-chained.",
    "steelyard audit list",
    "steelyard audit list --limit 200",
    "steelyard audit list --json",
)
COLUMNS = {
    "sequence": "no",
    "at": "at",
    "actor": "who",
    "action": "did",
    "object_type": "what",
    "object_id": "which",
    "from_address": "from",
}


@verb(
    verbs, "list", "steelyard audit list", "steelyard audit list --limit 200", "steelyard audit list --json"
)
def list_rows(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the newest rows of the audit log."""
    with connect(data_dir) as api:
        page = api.get("/audit-log", limit=limit, after=after)
    show_page(page, COLUMNS, as_json=as_json, empty="nothing was changed yet")
