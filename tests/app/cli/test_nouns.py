"""What the verbs send, and what they show of the answers."""

from __future__ import annotations

import csv
import io

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

TENANT = {"id": "ten_1", "name": "Demo", "currency": "USD", "timezone": "Europe/Berlin", "status": "active"}
PROJECT = {"id": "prj_1", "name": "Demo", "tenant_id": "ten_1", "status": "active"}
WALLET = {
    "id": "wal_1",
    "tenant_id": "ten_1",
    "currency": "USD",
    "posted": "9.9",
    "held": "0",
    "available": "9.9",
}


def test_a_key_goes_to_the_only_project_and_its_secret_is_shown(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", TENANT)
    control.lists("/tenants/ten_1/projects", PROJECT)
    control.gives("POST /projects/prj_1/keys", {"id": "key_1", "key": "sk-sy-secret"})
    result = steelyard("keys", "create", "ci", "--model", "m", "--model", "n")
    assert result.code == 0
    assert "sk-sy-secret" in result.out
    assert "shown this once" in result.err
    assert control.asked[-1].body == {"name": "ci", "models": ["m", "n"]}


def test_two_tenants_ask_for_a_choice(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/tenants", TENANT, {**TENANT, "id": "ten_2"})
    result = steelyard("projects", "list")
    assert result.code == 2
    assert "more than one tenant: say which" in result.err
    control.lists("/tenants/ten_2/projects", PROJECT)
    assert steelyard("projects", "list", "--tenant", "ten_2").code == 0


def test_an_ending_needs_confirmation_where_nobody_can_answer(
    steelyard: Steelyard, control: FakeControl
) -> None:
    result = steelyard("keys", "revoke", "key_1")
    assert (result.code, control.asked) == (6, [])
    assert "try: repeat with --yes" in result.err
    control.gives("POST /keys/key_1/revoke", {"id": "key_1", "state": "revoked"})
    assert "revoked" in steelyard("keys", "revoke", "key_1", "--yes").out


def test_a_grant_carries_an_idempotency_key_that_a_retry_can_reuse(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", TENANT)
    control.gives("GET /tenants/ten_1/wallet", WALLET)
    control.gives("POST /wallets/wal_1/grants", {"id": "grt_1", "amount": "25"}, status=201)
    first = steelyard("wallets", "grant", "25", "--yes")
    key = control.asked[-1].idempotency_key
    assert first.code == 0
    assert key is not None
    assert f"idempotency key: {key}" in first.err
    steelyard("wallets", "grant", "25", "--yes", "--idempotency-key", key)
    again = control.asked[-1]
    assert (again.idempotency_key, again.body["amount"], again.body["kind"]) == (key, "25", "purchased")


def test_prices_are_drafted_filled_and_published(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/price-books", {"id": "pbk_1", "name": "Standard", "currency": "USD", "is_default": True})
    control.gives("POST /price-books/pbk_1/versions", {"id": "pbv_1"})
    control.gives("PUT /price-versions/pbv_1/prices", {})
    control.gives("POST /price-versions/pbv_1/publish", {"id": "pbv_1", "status": "published"})
    result = steelyard(
        "prices", "publish", "--price", "org/m:8b:input=0.54", "--price", "m:output=2", "--yes"
    )
    assert result.code == 0
    filled = next(call for call in control.asked if call.method == "PUT")
    assert filled.body["prices"] == [
        {"model": "org/m:8b", "meter": "input", "price": "0.54"},
        {"model": "m", "meter": "output", "price": "2"},
    ]
    assert steelyard("prices", "publish", "--price", "0.54", "--yes").code == 2
    assert steelyard("prices", "publish", "--yes").code == 2


def test_prices_show_those_of_the_version_published_last(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/price-books", {"id": "pbk_1", "is_default": False})
    control.lists(
        "/price-books/pbk_1/versions",
        {"id": "pbv_1", "status": "published", "effective_from": "2026-11-01T00:00:00Z"},
        {"id": "pbv_2", "status": "published", "effective_from": "2026-11-02T00:00:00Z"},
        {"id": "pbv_3", "status": "draft", "effective_from": None},
    )
    prices = [{"model": "m", "meter": "input", "price": "0.54"}]
    control.gives("GET /price-versions/pbv_2", {"id": "pbv_2", "status": "published", "prices": prices})
    result = steelyard("prices", "show")
    assert result.code == 0
    assert result.out.splitlines()[-1].split() == ["m", "input", "0.54"]


def test_backends_are_added_tested_drained_and_removed(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/deployments", {"id": "dep_1"})
    control.gives("POST /backends", {"id": "bck_1"})
    added = ("backends", "add", "http://e:8000", "--engine", "vllm", "--served-model", "m", "--test")
    assert steelyard(*added).code == 0
    assert control.asked[-1].path == "/backends?test=true"
    assert control.asked[-1].body["deployment_id"] == "dep_1"
    control.gives("POST /backends/bck_1/drain", {"id": "bck_1", "status": "draining"})
    assert "draining" in steelyard("backends", "drain", "bck_1").out
    control.gives("DELETE /backends/bck_1", {"id": "bck_1", "status": "removed"})
    assert "removed" in steelyard("backends", "remove", "bck_1", "--yes").out


def _usage(model: str, *, output: int, cost: str) -> dict[str, object]:
    tokens = {"input": 10, "input_cached": 2, "input_cache_write": 0, "output": output, "reasoning": 0}
    billed = {f"billed_{name}": amount for name, amount in tokens.items() if name != "reasoning"}
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z"}
    counts = {"requests": 1, "unknown_requests": 0}
    return {**span, "model": model, **counts, **tokens, **billed, "cost": cost, "currency": "USD"}


def test_usage_totals_are_exact_and_days_are_cut_in_the_tenants_zone(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", TENANT)
    rows = [_usage("a", output=3, cost="0.000000000001"), _usage("b", output=4, cost="12345678901.1")]
    control.lists("/usage", *rows)
    shown = steelyard("usage", "show", "--from", "2026-11-01", "--to", "2026-12-01", "--json").json
    assert shown["totals"][0]["cost"] == "12345678901.100000000001"
    assert shown["totals"][0]["output"] == 7
    assert shown["from"] == "2026-11-01T00:00:00+01:00"
    assert "from=2026-11-01T00%3A00%3A00%2B01%3A00" in control.asked[-1].path
    lines = steelyard("usage", "show").out.splitlines()
    assert lines[-1].split() == ["total", "2", "0", "20", "4", "0", "7", "12345678901.100000000001", "USD"]


def test_a_grouping_or_range_that_makes_no_sense_is_a_usage_error(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", TENANT)
    control.lists("/usage")
    assert steelyard("usage", "show", "--by", "colour").code == 2
    assert steelyard("usage", "show", "--from", "yesterday").code == 2
    assert steelyard("usage", "show", "--zone", "Mars/Olympus").code == 2


def test_an_export_is_csv_whose_cells_no_spreadsheet_runs(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/tenants", TENANT)
    control.lists("/usage", _usage("=cmd()", output=3, cost="0.5"))
    rows = list(csv.DictReader(io.StringIO(steelyard("usage", "export").out)))
    assert len(rows) == 1
    assert (rows[0]["model"], rows[0]["output"], rows[0]["cost"]) == ("'=cmd()", "3", "0.5")


EXPLANATION = {
    "request_id": "req_1",
    "outcome": "completed",
    "cost": "0.0000076",
    "limits": [{"scope": "tenant", "what": "money", "held": "0.01", "used": "0.0000076"}],
    "hold": {"amount": "0.01", "released": "0.0099924"},
    "decision": {
        "reason": "Least predicted wait (12 ms) of 1.",
        "scores": [{"backend_id": "bck_1", "chosen": True}],
    },
    "attempts": [{"backend_id": "bck_1", "outcome": "completed"}],
    "usage": {"source": "engine", "input": 6, "output": 2},
    "charge": {
        "currency": "USD",
        "lines": [
            {"meter": "input", "tokens": 6, "price": "0.54", "amount": "0.00000324", "arithmetic": ""},
            {"meter": "output", "tokens": 2, "price": "2.16", "amount": "0.00000432", "arithmetic": ""},
        ],
        "total": "0.00000756",
    },
    "ledger": {"transaction_id": "txn_1", "entries": [{"account": "wallet", "amount": "-0.00000756"}]},
}


def test_an_explanation_shows_every_step_and_the_sum(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("GET /requests/req_1", EXPLANATION)
    text = steelyard("requests", "explain", "req_1").out
    assert "input: 6 tokens × 0.54 / 1 M = 0.00000324" in text
    assert "total     0.00000756" in text
    for piece in ("completed", "Least predicted wait", "bck_1", "0.0099924", "engine", "txn_1", "wallet"):
        assert piece in text
    assert steelyard("requests", "explain", "req_1", "--json").json == EXPLANATION


def test_the_log_of_requests_passes_its_filters_on(steelyard: Steelyard, control: FakeControl) -> None:
    row = {"request_id": "req_1", "outcome": "refused", "usage": None, "cost": None, "currency": None}
    control.lists("/requests", row)
    result = steelyard("requests", "list", "--outcome", "refused", "--model", "m")
    assert control.asked[0].path == "/requests?limit=50&model=m&outcome=refused"
    assert result.out.splitlines()[1].split()[:4] == ["–", "req_1", "–", "refused"]
    assert "steelyard requests explain REQUEST" in result.err


def test_the_log_of_requests_says_why_and_shows_moments_to_the_millisecond(
    steelyard: Steelyard, control: FakeControl
) -> None:
    row = {"request_id": "req_1", "admitted_at": "2026-11-30T22:17:25.793123Z", "outcome": "refused"}
    control.lists("/requests", {**row, "reason": "balance_too_low", "ttft_ms": 29.75821132323434})
    shown = steelyard("requests", "list").out
    assert "2026-11-30T22:17:25.793Z " in shown
    assert "balance_too_low" in shown
    assert "29.8" in shown
    assert "29.75" not in shown


def test_a_models_tokenizer_is_set_and_taken_away(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("PATCH /models/m", {"id": "mdl_1", "tokenizer": "/srv/tokenizer.json"})
    assert "/srv/tokenizer.json" in steelyard("models", "tokenizer", "m", "/srv/tokenizer.json").out
    assert control.asked[-1].body == {"tokenizer": "/srv/tokenizer.json"}
    assert steelyard("models", "tokenizer", "m", "--none").code == 0
    assert control.asked[-1].body == {"tokenizer": None}
    assert steelyard("models", "tokenizer", "m").code == 2
