"""`steelyard verify events FILE`: a tenant checks the scale, off-line: no server, no database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from app.cli import proof
from app.cli.commands.verify import verbs
from app.cli.errors import usage_error
from app.cli.options import AsJson, verb
from app.cli.recount import Recount, open_texts
from app.cli.tokenizer_file import load
from app.core.money import parse_picos
from billing.chain.check import Scope
from billing.chain.wire import KeptHead, Unreadable, read_heads

_TotalOption = Annotated[
    list[str] | None,
    typer.Option("--expect-total", help='What it should come to: "12.34 EUR"; repeat it for each currency.'),
]


@verb(
    verbs,
    "events",
    "steelyard verify events november.ndjson",
    "steelyard verify events november.ndjson --heads heads.json --to 2026-12-01",
    "steelyard verify events november.ndjson --texts texts.ndjson --tokenizer tokenizer.json",
)
def events(
    file: Annotated[Path, typer.Argument(help="What `usage events` wrote.")],
    *,
    heads: Annotated[
        list[Path] | None,
        typer.Option("--heads", help="Heads that you kept; repeat it."),
    ] = None,
    first_day: Annotated[
        str | None, typer.Option("--from", help="First day that must be there (with --heads).")
    ] = None,
    end_day: Annotated[
        str | None, typer.Option("--to", help="Day after the last that must be there (with --heads).")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="A filtered download: lines may be left out of the chain.")
    ] = False,
    zone: Annotated[str, typer.Option("--zone", help="IANA zone in which the sums' days are cut.")] = "UTC",
    expect_total: _TotalOption = None,
    texts: Annotated[
        Path | None,
        typer.Option("--texts", help="Your prompts and answers, to recount."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="The model's tokenizer.json or .gguf."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check chain, arithmetic and sums of downloaded usage events; exit code 1 if anything is wrong."""
    if not file.is_file():
        raise usage_error(f"there is no file {file}", remedy="steelyard usage events > events.ndjson")
    scope = Scope(
        partial=partial,
        heads=tuple(head for path in heads or () for head in _kept(path)),
        first_day=_day(first_day),
        end_day=_day(end_day),
    )
    if scope.first_day and scope.end_day and scope.end_day <= scope.first_day:
        raise usage_error(f"no day is from {first_day} to {end_day}", remedy="--to is the day after the last")
    question = proof.Question(file, scope, _zone(zone), dict(_total(text) for text in expect_total or ()))
    with _recount(texts, tokenizer) as recount:
        answer = proof.prove(question, recount=recount)
    proof.show(answer, as_json=as_json)
    return 1 if answer.check.flaws else 0


@contextmanager
def _recount(texts: Path | None, tokenizer: Path | None) -> Iterator[Recount | None]:
    if texts is None and tokenizer is None:
        yield None
        return
    if texts is None or tokenizer is None:
        raise usage_error("a recount needs both --texts and --tokenizer", remedy="--tokenizer tokenizer.json")
    with open_texts(texts) as opened:
        yield Recount(load(tokenizer), opened)


def _kept(path: Path) -> list[KeptHead]:
    try:
        return read_heads(path.read_bytes())
    except (Unreadable, OSError) as error:
        raise usage_error(f"{path}: {error}", remedy="steelyard usage heads --json > heads.json") from error


def _day(text: str | None) -> str | None:
    """A day as heads write it: days are compared as they are written."""
    try:
        return date.fromisoformat(text).isoformat() if text is not None else None
    except ValueError as error:
        raise usage_error(f"{text!r} is no day", remedy="write it as 2026-12-01") from error


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise usage_error(f"there is no time zone {name}", remedy="--zone Europe/Berlin") from error


def _total(text: str) -> tuple[str, int]:
    amount, _, currency = text.strip().partition(" ")
    try:
        return currency.strip().upper(), parse_picos(amount)
    except ValueError as error:
        raise usage_error(f"not an amount: {text}", remedy='--expect-total "12.34 EUR"') from error
