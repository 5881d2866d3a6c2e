"""Each allowance against the events that drew on it: what is spent, in which period, held by whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.core.clock import from_ms
from tests.simulation.evidence import Evidence, billed_of
from tests.simulation.outcome import Outcome

if TYPE_CHECKING:
    from tests.simulation.world import World

_ALLOWANCES = """
SELECT id, tenant_id, scope_kind, scope_id, model_id, what, window_kind, spent::text AS spent, period_start,
  period_end, limit_source, burst::text AS burst, limit_amount::text AS amount FROM allowance
"""
_GRAIN_S = 0.01
"""How far the server's clock may be behind the world's, twice."""


def judge_allowances(world: World, evidence: Evidence, outcome: Outcome) -> None:
    """Count what does not agree, of whatever limits but is no wallet's."""
    rows = [dict(row) for row in world.arena.fetch(_ALLOWANCES)]
    lent = [row for row in rows if row["window_kind"] not in ("minute", "request")]
    outcome.limits = len(rows) - len(world.catalogue.payers)
    drawn = _drawn(evidence)
    steady = all(trouble.what != "clock_jump" for trouble in world.plan.troubles)
    for row in lent:
        if int(row["spent"]) != drawn[row["id"]]:
            outcome.found("mismatched_limits", f"{_name(row)}: spent {row['spent']}, used {drawn[row['id']]}")
    by_id = {row["id"]: row for row in rows}
    for name, admissions in evidence.admitted.items():
        holds = {held.allowance_id: held for held in admissions[0].holds}
        for held in holds.values():
            _judge_hold(by_id[held.allowance_id], held, admissions[0], steady=steady, outcome=outcome)
        demanded = lent if steady and not world.limit_desk.edits else ()
        for row in (row for row in demanded if _applies(row, admissions[0]) and row["id"] not in holds):
            outcome.found("mismatched_limits", f"{name[-6:]} was admitted without {_name(row)}")
    for row in rows:
        if row["window_kind"] == "minute":
            _judge_rate(world, row, outcome)


def _drawn(evidence: Evidence) -> Counter[str]:
    """By allowance, what the events of the requests that held some of it come to."""
    drawn: Counter[str] = Counter()
    for request_id, event in evidence.events.items():
        for held in evidence.admitted[request_id][0].holds if request_id in evidence.admitted else ():
            drawn[held.allowance_id] += _used(held.what, event)
    return drawn


def _used(what: str, event: dict[str, Any]) -> int:
    billed = billed_of(event)
    counts = {
        "picos": int(event["cost"]),
        "tokens": billed.input + billed.input_cached + billed.input_cache_write + billed.output,
        "input_tokens": billed.input + billed.input_cached + billed.input_cache_write,
        "output_tokens": billed.output,
        "requests": 1,
        "concurrent": 0,
    }
    return counts[what]


def _judge_hold(row: dict[str, Any], held: Any, admitted: Any, *, steady: bool, outcome: Outcome) -> None:
    """Of the kind that its allowance counts, in the period of the admission, of a scope of the request."""
    if held.what != row["what"] or not _is_of(row, admitted):
        outcome.found("mismatched_limits", f"{admitted.request_id[-6:]} holds {held} of {_name(row)}")
    if steady and not _is_in(row, admitted.at_ms):
        outcome.found(
            "mismatched_limits", f"{admitted.request_id[-6:]} is in another period than {_name(row)}"
        )


def _applies(row: dict[str, Any], admitted: Any) -> bool:
    """True if a request must hold some of it, as far as limits that nobody edits go."""
    if row["limit_source"] is None and row["scope_kind"] == "task":
        return False
    return _is_of(row, admitted) and _is_in(row, admitted.at_ms)


def _is_of(row: dict[str, Any], admitted: Any) -> bool:
    scopes = {
        "tenant": admitted.tenant_id,
        "project": admitted.project_id,
        "key": admitted.key_id,
        "task": admitted.task_id,
    }
    return scopes[row["scope_kind"]] == row["scope_id"] and row["model_id"] in (None, admitted.model_id)


def _is_in(row: dict[str, Any], at_ms: int) -> bool:
    return row["period_start"] is None or row["period_start"] <= from_ms(at_ms) < row["period_end"]


def _judge_rate(world: World, row: dict[str, Any], outcome: Outcome) -> None:
    """In any time, no more is consumed than the bucket holds and what it fills by: over all processes."""
    consumed = sorted(world.tally.consumed[row["id"]])
    most = world.watch.most_of_rate.get(row["id"])
    if most is None or not consumed:
        return
    burst, per_minute = most
    outcome.rated += len(consumed)
    if beyond := worst(consumed, burst=burst, per_minute=per_minute):
        outcome.over_limit += 1
        outcome.findings.append(f"{_name(row)} of {burst} and {per_minute} a minute: {beyond:.2f} too much")


def worst(consumed: Sequence[tuple[float, int]], *, burst: int, per_minute: int) -> float:
    """How far the exact bucket was overdrawn, at most; 0 if it never was."""
    level, at, beyond = float(burst), consumed[0][0], 0.0
    for when, amount in consumed:
        level = min(level + (when - at) * per_minute / 60, float(burst)) - amount
        at = when
        beyond = min(beyond, level + _GRAIN_S * per_minute / 60)
    return -beyond


def _name(row: dict[str, Any]) -> str:
    return f"{row['what']} per {row['window_kind']} of a {row['scope_kind']} ({row['id'][-6:]})"
