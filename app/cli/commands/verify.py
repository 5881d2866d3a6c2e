"""`steelyard verify …`: whether what is told about tokens and money is so.

`steelyard verify` alone is `steelyard verify books` of today.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.errors import usage_error
from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, noun, verb
from app.cli.present import hint, print_json, print_table, show_record

verbs = noun(
    "verify",
    "Whether what is told about tokens and money is so: engines, events, roll-ups, ledger, wallets.",
    "steelyard verify",
    "steelyard verify books --json",
    "steelyard verify books --from 2026-11-01 --to 2026-11-30",
)
Day = Annotated[str | None, typer.Option("--from", help="First UTC day, as 2026-12-01; else today.")]
LastDay = Annotated[str | None, typer.Option("--to", help="Last UTC day, included; else the first.")]
Lag = Annotated[
    int | None,
    typer.Option("--lag", min=0, help="Compare engines up to so many seconds ago; 0: now, if nothing runs."),
]
PAIRS = {
    "journal_events": "journals → events",
    "conflicts": "one settlement a request",
    "events_rollups": "events ↔ roll-ups",
    "events_links": "events ↔ usage chain",
    "events_ledger": "events ↔ ledger",
    "corrections_ledger": "corrections ↔ ledger",
    "grants_ledger": "grants ↔ ledger",
    "double_entry": "every transaction sums to zero",
    "ledger_wallets": "ledger ↔ wallets",
    "leases_allowances": "leases ↔ allowances",
    "engine_events": "engine counters ↔ events",
}
PROOFS = {"": "", "proof": "proof", "day": "day", "scanned": "rows read", "gaps": "gaps", "took": "took"}
ENGINES = {
    "day": "day",
    "backend_id": "backend",
    "model_name": "model",
    "meter": "meter",
    "counted": "engine",
    "recorded": "events",
    "explained": "explained",
    "unexplained": "unexplained",
    "billed": "billed",
    "state": "state",
}
GAPS = {
    "id": "gap",
    "pair": "between",
    "day": "day",
    "kind": "kind",
    "difference": "difference",
    "what": "what",
}
MOST_DAYS = 366
_UNITS = {"picos": "picos", "tokens": "tokens", "records": "records"}


@verbs.callback(invoke_without_command=True, no_args_is_help=False)
def alone(
    context: typer.Context, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> int | None:
    """Verify the books of today, if nothing else is asked for."""
    if context.invoked_subcommand:
        return None
    return _verify([_today()], lag_s=None, as_json=as_json, data_dir=data_dir)


@verb(
    verbs,
    "books",
    "steelyard verify books",
    "steelyard verify books --from 2026-11-01 --to 2026-11-30",
    "steelyard verify books --lag 0 --json",
)
def books(
    *,
    first: Day = None,
    last: LastDay = None,
    lag_s: Lag = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> int:
    """Prove that engine counters, events, roll-ups, ledger and wallets agree; exit code 1 if they don't."""
    begins = _day(first) if first else _today()
    days = list(_days(begins, last=_day(last) if last else begins))
    if not days:
        raise usage_error(f"{last} is before {first}", remedy="name the days in their order")
    if len(days) > MOST_DAYS:
        raise usage_error(f"{len(days)} days are too many", remedy=f"verify at most {MOST_DAYS} at once")
    return _verify(days, lag_s=lag_s, as_json=as_json, data_dir=data_dir)


@verb(
    verbs,
    "acknowledge",
    'steelyard verify acknowledge 12 "the engine was warmed up by hand"',
    'steelyard verify acknowledge 12 "a test around the gateway" --json',
    'steelyard verify acknowledge 12 "credited to the tenant" --data-dir /srv/steelyard',
)
def acknowledge(
    gap: Annotated[int, typer.Argument(min=1, help="Number of the gap.")],
    because: Annotated[str, typer.Argument(help="What was found out.")],
    *,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Say that a gap was looked into: it stays on record and alarms again only if its numbers change."""
    with connect(data_dir) as api:
        show_record(
            api.post(f"/reconciliation/gaps/{gap}/acknowledge", {"because": because}), as_json=as_json
        )


def _verify(days: Sequence[date], *, lag_s: int | None, as_json: bool, data_dir: Path) -> int:
    """Prove pair by pair and day by day, and print what was found."""
    with connect(data_dir) as api:
        for number, (day, pair) in enumerate(steps := [(day, pair) for day in days for pair in PAIRS]):
            _progress(f"{number + 1}/{len(steps)} {day} {PAIRS[pair]}")
            api.post(f"/reconciliation/{day}", query=_query(pair, lag_s=lag_s))
        _progress("")
        report = _report(api, days)
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["agree"] else 1


def _query(pair: str, *, lag_s: int | None) -> dict[str, Any]:
    return {"pair": pair} if lag_s is None else {"pair": pair, "lag_s": lag_s}


def _report(api: Api, days: Sequence[date]) -> dict[str, Any]:
    query = {"from": str(days[0]), "to": str(days[-1])}
    report: dict[str, Any] = api.get("/reconciliation", **query)
    return report


def _show(report: Mapping[str, Any]) -> None:
    print_table([_proof(proof) for proof in report["proofs"]], PROOFS)
    if report["engines"]:
        print()
        print_table([_engine(day) for day in report["engines"]], ENGINES)
    else:
        hint("no engine has told its counters yet: they are read each minute")
    if report["gaps"]:
        print()
        print_table([_gap(gap) for gap in report["gaps"]], GAPS)
    print()
    print(_verdict(report))


def _verdict(report: Mapping[str, Any]) -> str:
    gaps = sum(not gap.get("acknowledged_at") for gap in report["gaps"])
    untold = sum(day["state"] == "unknown" for day in report["engines"])
    said = "✓ all agree" if report["agree"] else f"✗ {gaps} gap{'s' if gaps != 1 else ''}"
    return f"{said}; of {untold} engine counts nothing is known (yet)" if untold else said


def _proof(proof: Mapping[str, Any]) -> list[str]:
    return [
        "✗" if proof["gaps"] else "✓",
        PAIRS.get(proof["pair"], proof["pair"]),
        proof["day"] or "now",
        str(proof["scanned"]),
        str(proof["gaps"]),
        f"{proof['took_ms']} ms",
    ]


def _engine(day: Mapping[str, Any]) -> list[str]:
    """Unknown is a dash; what is explained is the range that the events leave, beside what they record."""
    low, high = (
        sum(share[side] - share["recorded"] for share in day["explained"]) for side in ("low", "high")
    )
    explained = f"{low:+d} … {high:+d}" if (low, high) != (0, 0) else "0"
    told = {**day, "explained": explained, "state": day["state"].replace("_", " ")}
    return ["–" if told[name] is None else str(told[name]) for name in ENGINES]


def _gap(gap: Mapping[str, Any]) -> list[str]:
    difference = f"{gap['difference']} {_UNITS.get(gap['unit'], gap['unit'])}"
    seen = f" (acknowledged: {gap['acknowledged_because']})" if gap.get("acknowledged_at") else ""
    return [
        str(gap["id"]),
        PAIRS.get(gap["pair"], gap["pair"]),
        gap["day"] or "now",
        gap["kind"].replace("_", " "),
        difference,
        f"{gap['scope']}: {gap['explanation']}{seen}",
    ]


def _progress(text: str) -> None:
    """One line on a terminal that the next one overwrites; nothing in a pipe."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _days(first: date, *, last: date) -> Iterator[date]:
    return (first + timedelta(days=number) for number in range((last - first).days + 1))


def _today() -> date:
    return datetime.now(UTC).date()


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise usage_error(f"{text!r} is no day", remedy="write it as 2026-12-01") from None
