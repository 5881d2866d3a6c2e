"""`steelyard verify` asks for each proof, shows what was found, and its exit code says whether all agree."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

PROOF = {"pair": "events_ledger", "day": "2026-12-01", "scanned": 31, "gaps": 0, "took_ms": 4}
DAY = {
    "day": "2026-12-01",
    "backend_id": "bck_1",
    "model_name": "small",
    "meter": "generated",
    "counted": 1000,
    "recorded": 990,
    "billed": 990,
    "unexplained": 0,
    "explained": [{"kind": "cut", "recorded": 990, "low": 990, "high": 1502}],
    "state": "reconciled",
}
GAP = {
    "id": 7,
    "pair": "events_ledger",
    "day": "2026-12-01",
    "kind": "amount_differs",
    "unit": "picos",
    "difference": "-5",
    "scope": "txn_1",
    "explanation": "2 events cost 10, the transaction has revenue 15",
}


def report(**changes: Any) -> dict[str, Any]:
    return {"agree": True, "proofs": [PROOF], "engines": [DAY], "gaps": [], **changes}


def proven(control: FakeControl, day: str, **changes: Any) -> None:
    control.gives(f"POST /reconciliation/{day}", report())
    control.gives("GET /reconciliation", report(**changes))


def test_alone_it_proves_the_books_of_today(steelyard: Steelyard, control: FakeControl) -> None:
    days = {datetime.now(UTC).date().isoformat()}
    proven(control, next(iter(days)))
    result = steelyard("verify")
    days.add(datetime.now(UTC).date().isoformat())
    assert result.code == 0
    asked = [call.path for call in control.asked]
    assert len(asked) == 12
    assert any(asked[0] == f"/reconciliation/{day}?pair=journal_events" for day in days)
    assert any(asked[-1] == f"/reconciliation?from={day}&to={day}" for day in days)


def test_each_proof_is_ticked_and_each_engine_told_with_its_range(
    steelyard: Steelyard, control: FakeControl
) -> None:
    proven(control, "2026-12-01")
    result = steelyard("verify", "books", "--from", "2026-12-01", "--lag", "0")
    assert result.code == 0
    assert control.asked[0].path == "/reconciliation/2026-12-01?pair=journal_events&lag_s=0"
    lines = result.out.splitlines()
    assert "✓  events ↔ ledger" in lines[1]
    assert "+0 … +512" in lines[4]
    assert lines[-1] == "✓ all agree"


def test_a_gap_is_told_and_ends_with_1(steelyard: Steelyard, control: FakeControl) -> None:
    changes = {"agree": False, "gaps": [GAP], "proofs": [{**PROOF, "gaps": 1}]}
    proven(control, "2026-12-01", **changes)
    result = steelyard("verify", "books", "--from", "2026-12-01")
    assert result.code == 1
    assert "✗  events ↔ ledger" in result.out
    assert "-5 picos" in result.out
    assert "txn_1: 2 events cost 10" in result.out
    assert result.out.splitlines()[-1] == "✗ 1 gap"
    assert steelyard("verify", "books", "--from", "2026-12-01", "--json").json == report(**changes)


def test_what_an_engine_did_not_tell_is_a_dash(steelyard: Steelyard, control: FakeControl) -> None:
    unknown = {**DAY, "counted": None, "unexplained": None, "explained": [], "state": "unknown"}
    proven(control, "2026-12-01", engines=[unknown])
    lines = steelyard("verify", "books", "--from", "2026-12-01").out.splitlines()
    assert lines[4].split()[4:] == ["–", "990", "0", "–", "990", "unknown"]
    assert lines[-1] == "✓ all agree; of 1 engine counts nothing is known (yet)"


def test_days_are_proven_one_by_one_in_their_order(steelyard: Steelyard, control: FakeControl) -> None:
    proven(control, "2026-11-30")
    control.gives("POST /reconciliation/2026-12-01", report())
    assert steelyard("verify", "books", "--from", "2026-11-30", "--to", "2026-12-01").code == 0
    assert len(control.asked) == 23
    assert control.asked[11].path == "/reconciliation/2026-12-01?pair=journal_events"
    assert steelyard("verify", "books", "--from", "2026-12-01", "--to", "2026-11-30").code == 2
    assert steelyard("verify", "books", "--from", "yesterday").code == 2
    assert steelyard("verify", "books", "--from", "2025-11-30", "--to", "2026-12-01").code == 2
    assert len(control.asked) == 23


def test_a_gap_is_acknowledged_with_its_reason(steelyard: Steelyard, control: FakeControl) -> None:
    seen = {**GAP, "acknowledged_at": "2026-12-01T10:00:00Z", "acknowledged_because": "a test"}
    control.gives("POST /reconciliation/gaps/7/acknowledge", seen)
    assert steelyard("verify", "acknowledge", "7", "a test").code == 0
    assert control.asked[-1].body == {"because": "a test"}
    proven(control, "2026-12-01", gaps=[seen])
    result = steelyard("verify", "books", "--from", "2026-12-01")
    assert result.code == 0
    assert "(acknowledged: a test)" in result.out
