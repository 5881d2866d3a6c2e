"""Options that many verbs share, and the form of a verb's help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Action = TypeVar("Action", bound=Callable[..., Any])

DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar="STEELYARD_DATA_DIR", help="Folder of the local stack.", show_default=True
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, all else on standard error.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=500, help="Most rows to show.")]
After = Annotated[str | None, typer.Option("--after", help="Go on after this cursor.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", help="Name of this write: repeated with the same one, it is done once."
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", envvar="STEELYARD_TENANT", help="Tenant id; may be left out if there is one."),
]
ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project", envvar="STEELYARD_PROJECT", help="Project id; may be left out if there is one."
    ),
]

DEFAULT_DATA_DIR = Path(".steelyard")


def noun(name: str, text: str, *examples: str) -> typer.Typer:
    """A noun whose help begins with examples; verbs are added to it."""
    described = _described(text, examples)
    return typer.Typer(
        name=name,
        help=described,
        short_help=text,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def verb(group: typer.Typer, name: str, *examples: str) -> Callable[[Action], Action]:
    """Add a function to a noun as a verb; its help begins with examples and goes on with its docstring."""

    def add(action: Action) -> Action:
        text = action.__doc__ or ""
        return group.command(name, help=_described(text, examples), short_help=text)(action)

    return add


def _described(text: str, examples: Sequence[str]) -> str:
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", text])
