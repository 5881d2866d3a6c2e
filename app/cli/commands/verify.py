"""`steelyard verify …`: whether what is told about tokens and money is so.

`steelyard verify` alone is `steelyard verify books`.
"""

from __future__ import annotations

from typing import Any

import typer

from app.cli.api import connect
from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, noun, verb
from app.cli.present import print_json, show_rows

verbs = noun(
    "verify",
    "Whether what is told about tokens and money is so: engines, events, roll-ups, ledger, wallets.",
    "steelyard verify",
    "steelyard verify books --json",
    "steelyard verify --help",
)
PROOFS = {"pair": "proof", "day": "day", "gaps": "gaps"}


@verbs.callback(invoke_without_command=True, no_args_is_help=False)
def alone(
    context: typer.Context, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> int | None:
    """Verify the books, if nothing else is asked for."""
    return None if context.invoked_subcommand else _verify(as_json=as_json, data_dir=data_dir)


@verb(
    verbs,
    "books",
    "steelyard verify books",
    "steelyard verify books --json",
    "steelyard verify books --data-dir /srv/steelyard",
)
def books(*, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> int:
    """Prove that engine counters, events, roll-ups, ledger and wallets agree; exit code 1 if they don't."""
    return _verify(as_json=as_json, data_dir=data_dir)


def _verify(*, as_json: bool, data_dir: Any) -> int:
    with connect(data_dir) as api:
        report = api.get("/reconciliation/latest")
    if as_json:
        print_json(report)
    else:
        show_rows(report["proofs"], PROOFS, as_json=False, empty="nothing was proven yet")
    return 1 if report["gaps"] else 0
