"""Answers as text: tables on a terminal, plain aligned columns in a pipe, JSON for programs.

Data goes to standard output; hints, questions and secrets' warnings go to standard error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from app.cli.errors import CommandFailed, ExitCode

Columns = Mapping[str, str]
"""Field (dots reach into objects) → heading."""

_NUMBERS = (
    "amount posted held available remaining burned expired cost price requests unknown_requests tokens total "
    "weight sequence limit priority used leased peak refused budget before after burst"
)
_TOKENS = "input input_cached input_cache_write output context_limit max_output_tokens max_concurrent"
_ENDLESS = 10_000
_MICROSECONDS = re.compile(r"(?<=\d\d:\d\d:\d\d\.\d{3})\d{3}(?=Z$)")
_MOVING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor or turns its text around: a name could hide a line or write another one."""
_TIMES = "ttft_ms first_byte_ms duration_ms predicted_wait_ms"
_RIGHT = frozenset(f"{_NUMBERS} {_TOKENS} {_TIMES}".split())


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def hint(text: str) -> None:
    """A line for people, beside the data."""
    sys.stderr.write(text + "\n")


def show_rows(
    rows: Sequence[Mapping[str, Any]], columns: Columns, *, as_json: bool, empty: str = "none"
) -> None:
    """A list as table, aligned text or JSON array."""
    if as_json:
        print_json(list(rows))
    elif rows:
        print_table([[cell(find(row, field)) for field in columns] for row in rows], columns)
    else:
        hint(empty)


def show_page(page: Mapping[str, Any], columns: Columns, *, as_json: bool, empty: str = "none") -> None:
    """One page of a list; says on standard error how to go on."""
    show_rows(page["data"], columns, as_json=as_json, empty=empty)
    if page.get("has_more"):
        hint(f"more: --after {page['next']}")


def show_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: its fields below one another, or JSON."""
    if as_json:
        print_json(record)
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        print(f"{name:<{width}}  {still(cell(value))}")


def print_table(rows: Sequence[Sequence[str]], columns: Columns, *, indent: int = 0) -> None:
    """Cells under headings: with lines and weight on a terminal, aligned by spaces in a pipe."""
    right = [field.rpartition(".")[2] in _RIGHT for field in columns]
    rows = [[still(text) for text in row] for row in rows]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(rows, list(columns.values()), right=right, indent=indent)
    else:
        _print_plain(rows, list(columns.values()), right=right, indent=indent)


def find(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of nested objects, or None."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def cell(value: Any) -> str:
    """A value as text; unknown is a dash, never 0. Moments are shown to the millisecond."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):  # a measured time; money never is one
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(cell(inner) for inner in value) or "–"
    return _MICROSECONDS.sub("", str(value))


def still(text: str) -> str:
    """A text with whatever would move a terminal's cursor spelt out."""
    return _MOVING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def confirm(question: str, *, yes: bool) -> None:
    """Return if it may be done. Raises CommandFailed if the answer is no, or nobody is there to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            "needs_confirmation",
            question,
            exit_code=ExitCode.NEEDS_CONFIRMATION,
            why="nobody is at a terminal to answer",
            remedy="repeat with --yes",
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("declined", "nothing was done", exit_code=ExitCode.NEEDS_CONFIRMATION)


def idempotency_key(given: str | None) -> str:
    """The name of a write: the given one, or a new one that is printed so that a retry can reuse it."""
    key = given or f"cli-{uuid4().hex}"
    hint(f"idempotency key: {key}")
    return key


def _print_plain(
    rows: Sequence[Sequence[str]], headings: Sequence[str], *, right: Sequence[bool], indent: int
) -> None:
    table = [[heading.upper() for heading in headings], *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(headings))]
    for row in table:
        cells = (
            f"{text:>{w}}" if r else f"{text:<{w}}" for text, w, r in zip(row, widths, right, strict=True)
        )
        print(" " * indent + "  ".join(cells).rstrip())


def _print_rich(
    rows: Sequence[Sequence[str]], headings: Sequence[str], *, right: Sequence[bool], indent: int
) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, is_right in zip(headings, right, strict=True):
        table.add_column(heading, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    shown = Padding(table, (0, 0, 0, indent))
    console = Console()
    # Too wide a line is the terminal's to wrap: an id that is cut in two can't be copied.
    console.width = max(
        console.width, console.measure(shown, options=console.options.update(max_width=_ENDLESS)).maximum
    )
    console.print(shown)
