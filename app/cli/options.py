"""Options that many verbs share, and the form of a verb's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="STEELYARD_DATA_DIR", help="Folder of the local stack.", show_default=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, all else on standard error.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Most rows to show.")]
After = Annotated[str | None, typer.Option("--after", help="Go on after this cursor.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Name of this write: repeated with the same one, it is done once."),
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", envvar="STEELYARD_TENANT", help="Tenant id; may be left out if there is one.")
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", envvar="STEELYARD_PROJECT", help="Project id; may be left out if there is one.")
]

DEFAULT_DATA_DIR = Path(".steelyard")


def noun(name: str, text: str, *examples: str) -> typer.Typer:
    """A noun whose help begins with examples; verbs are added to it."""
    return typer.Typer(name=name, help=described(text, *examples), no_args_is_help=True, rich_markup_mode=None)


def described(text: str, *examples: str) -> str:
    """Help text that begins with examples, one a line, and then says what it does."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", text])
