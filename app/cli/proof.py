"""Reads a file of usage lines through the check, and tells what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from app.cli.doubles import Doubles, key_of
from app.cli.present import cell, print_json, print_table, show_record
from app.cli.progress import progress
from app.cli.recount import Recount, Recounted
from app.core.money import format_picos
from billing.chain.check import Check, Finding, Scope, id_of
from billing.chain.sums import CLASSES, Sum
from billing.chain.walk import Flaw
from billing.chain.wire import Event, Unreadable, read_line

LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is none of ours."""
_SUMS = {
    "day": "day",
    "model": "model",
    "currency": "currency",
    "requests": "requests",
    "unknown_requests": "unknown",
    "input": "input",
    "input_cached": "cached",
    "input_cache_write": "cache write",
    "output": "output",
    "cost": "cost",
    "amount": "net of corrections",
}
_INEXACT = {"id": "request", "side": "side", "metered": "metered", "counted": "counted", "rule": "why"}
_FINDINGS = {"line": "line", "id": "request", "flaw": "wrong", "what": "what"}


@dataclass(frozen=True)
class Question:
    """What to check.   expected: net picos by currency."""

    file: Path
    scope: Scope
    zone: ZoneInfo
    expected: Mapping[str, int]


@dataclass(frozen=True)
class Answer:
    """What came out."""

    question: Question
    check: Check
    recount: Recount | None


def prove(question: Question, *, recount: Recount | None) -> Answer:
    """Read the whole file, in constant memory; with a recount, count again what there are texts of."""
    check = Check(question.scope, zone=question.zone)
    with Doubles() as doubles:
        for raw in read_lines(question.file):
            line = check.take(raw)
            if line is not None and (line_id := id_of(line)):
                doubles.add(line_id)
            counted = recount.take(line) if recount is not None and isinstance(line, Event) else None
            if counted is not None:
                _note(check, counted)
        twice = doubles.found()
    check.finish(expected=question.expected)
    if twice:
        _name_doubles(check, question.file, twice=twice)
    return Answer(question, check, recount)


def _name_doubles(check: Check, file: Path, *, twice: set[int]) -> None:
    """Read the file once more, to name the lines of what was metered or corrected more than once."""
    seen: dict[str, int] = {}
    for number, raw in enumerate(read_lines(file), start=1):
        try:
            line, _ = read_line(raw)
        except Unreadable:
            continue
        line_id = id_of(line)
        if not line_id or key_of(line_id) not in twice:
            continue
        first = seen.setdefault(line_id, number)
        if first != number:
            check.keep(Finding(number, line_id, Flaw.DOUBLE, f"it stands in line {first} already"))


def _note(check: Check, counted: Recounted) -> None:
    for name, side in (("input", counted.input), ("output", counted.output)):
        if side.differs:
            what = f"{name}: {side.metered} tokens were metered, the texts have {side.counted}"
            check.note(Flaw.RECOUNT, what, line_id=counted.request_id)


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their newlines; of one that is too long, only its beginning."""
    with progress("bytes", total=file.stat().st_size, is_bytes=True) as advance, file.open("rb") as lines:
        seen = 0
        while raw := lines.readline(LONGEST_LINE):
            yield raw.removesuffix(b"\n")
            seen += len(raw)
            if seen >= LONGEST_LINE:
                advance(seen)
                seen = 0


def show(answer: Answer, *, as_json: bool) -> None:
    """Print sums, findings and verdict."""
    if as_json:
        print_json(_object(answer))
        return
    check, zone = answer.check, answer.question.zone
    show_record(_facts(answer), as_json=False)
    groups = check.sums.by_group()
    if groups:
        print(f"\nby day of admission ({zone.key})")
        rows = [_row(key, group) for key, group in groups.items()]
        print_table([[str(row[name]) for name in _SUMS] for row in rows], _SUMS)
    if answer.recount is not None:
        _show_recount(answer.recount)
    if check.findings:
        print("\nwhat is wrong")
        print_table([_cells(finding) for finding in check.findings], _FINDINGS)
        left = sum(check.flaws.values()) - len(check.findings)
        if left:
            print(f"and {left} more")
    print(f"\n{verdict(answer)}")


def _show_recount(recount: Recount) -> None:
    told = recounted(recount)
    print("\ncounted again")
    show_record({name: value for name, value in told.items() if name != "not_recountable"}, as_json=False)
    rows = told["not_recountable"]
    if rows:
        print("\nwhat can't be counted exactly")
        print_table([[cell(row[name]) for name in _INEXACT] for row in rows], _INEXACT)


def recounted(recount: Recount) -> dict[str, Any]:
    """What counting again came to; each request has two sides."""
    rows = [
        {"id": each.request_id, "side": name, **side._asdict()}
        for each in recount.kept
        for name, side in (("input", each.input), ("output", each.output))
        if side.rule is not None
    ]
    return {
        "requests": recount.requests,
        "sides_equal": recount.equal,
        "sides_different": recount.different,
        "sides_not_recountable": recount.inexact,
        "texts_without_event": recount.texts.left(),
        "not_recountable": rows,
    }


def verdict(answer: Answer) -> str:
    """One line: whether the file is right, and what it can't tell."""
    check, scope = answer.check, answer.question.scope
    if check.flaws:
        counts = ", ".join(f"{amount} {flaw.value}" for flaw, amount in sorted(check.flaws.items()))
        return f"WRONG: {counts}"
    if not any(check.kinds.values()):
        return "RIGHT, but of nothing: there are no lines. The range has no usage, or its download failed"
    chain = "each line is as it was sealed" if scope.partial else "the chain is whole"
    doubts = []
    if scope.partial:
        doubts.append("lines that were left out can't be checked")
    elif not scope.heads:
        doubts.append("without kept heads, lines cut from the end would not show")
    elif check.loose_from:
        doubts.append(f"lines cut from the end would not show after {check.loose_from}")
    if check.kinds["withheld"]:
        doubts.append(f"{check.kinds['withheld']} lines are withheld: of them only their places are checked")
    if check.untied:
        doubts.append(f"{check.untied} corrections are of requests that this file doesn't have")
    totals = ", ".join(f"{format_picos(net)} {name}" for name, net in check.sums.totals().items())
    doubt = f" ({'; '.join(doubts)})" if doubts else ""
    return f"RIGHT: {chain}, every amount follows from its tokens and prices, total {totals or '0'}{doubt}"


def _facts(answer: Answer) -> dict[str, Any]:
    check = answer.check
    kinds = {kind: check.kinds[kind] for kind in ("event", "correction", "withheld")}
    return {
        "file": str(answer.question.file),
        "tenant": check.tenant_id,
        "events": kinds["event"],
        "corrections": kinds["correction"],
        "withheld": kinds["withheld"],
        "start": check.start,
        "corrections_without_event": check.untied,
    }


def _row(key: tuple[str, str, str], group: Sum) -> dict[str, Any]:
    day, model, currency = key
    return {
        "day": day,
        "model": model,
        "currency": currency,
        "requests": group.requests,
        "unknown_requests": group.unknown_requests,
        **{name: group.tokens[name] for name in CLASSES},
        "cost": format_picos(group.cost),
        "corrected": format_picos(group.corrected),
        "amount": format_picos(group.net),
    }


def _cells(finding: Finding) -> list[str]:
    return ["–" if finding.line is None else str(finding.line), finding.id or "–", finding.flaw, finding.what]


def _object(answer: Answer) -> dict[str, Any]:
    check = answer.check
    return {
        **_facts(answer),
        "zone": answer.question.zone.key,
        "right": not check.flaws,
        "verdict": verdict(answer),
        "flaws": {flaw.value: check.flaws[flaw] for flaw in Flaw},
        "findings": [finding._asdict() for finding in check.findings],
        "sums": [_row(key, group) for key, group in check.sums.by_group().items()],
        "recount": None if answer.recount is None else recounted(answer.recount),
        "totals": {name: format_picos(net) for name, net in check.sums.totals().items()},
    }
