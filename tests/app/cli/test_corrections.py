"""What the verbs of corrections and grants send, and what they refuse to."""

from __future__ import annotations

import pytest

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

MADE = {
    "id": "cor_1",
    "request_id": "req_1",
    "amount": "0.25",
    "currency": "USD",
    "at": "2026-12-01T00:00:00Z",
    "reason": "cut",
    "reference": "cli-1",
}
ROUTE = "POST /requests/req_1/corrections"


def test_an_amount_is_sent_as_it_was_written(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives(ROUTE, MADE, status=201)
    result = steelyard("corrections", "create", "req_1", "--amount", "-0.10", "--reason", "cut", "--yes")
    assert (result.code, control.asked[-1].body) == (0, {"reason": "cut", "amount": "-0.10"})
    assert control.asked[-1].idempotency_key is not None
    assert "cor_1" in result.out


def test_tokens_are_sent_by_class(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives(ROUTE, MADE, status=201)
    changes = ("--tokens", "output=-120", "--tokens", "input=3", "--reference", "t7")
    assert steelyard("corrections", "create", "req_1", *changes, "--reason", "twice", "--yes").code == 0
    assert control.asked[-1].body == {
        "reason": "twice",
        "tokens": {"output": -120, "input": 3},
        "reference": "t7",
    }


@pytest.mark.parametrize("changes", [(), ("--tokens", "output"), ("--tokens", "output=many")])
def test_a_correction_of_nothing_or_of_no_number_is_a_wrong_line(
    steelyard: Steelyard, control: FakeControl, changes: tuple[str, ...]
) -> None:
    result = steelyard("corrections", "create", "req_1", *changes, "--reason", "x", "--yes")
    assert (result.code, control.asked) == (2, [])


def test_money_moves_only_after_a_yes(steelyard: Steelyard, control: FakeControl) -> None:
    result = steelyard("corrections", "create", "req_1", "--amount", "1", "--reason", "x")
    assert (result.code, control.asked) == (6, [])


def test_corrections_are_listed_with_what_they_are_for(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/corrections", MADE)
    result = steelyard("corrections", "list", "--request", "req_1")
    assert [word in result.out for word in ("req_1", "0.25", "cut")] == [True] * 3
    assert "request_id=req_1" in control.asked[-1].path
    control.lists("/corrections")
    assert "no corrections" in steelyard("corrections", "list").err


def test_a_grants_terms_are_sent_and_its_remains_are_shown(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.gives("GET /tenants/ten_1/wallet", {"id": "wal_1", "currency": "USD"})
    control.gives("POST /wallets/wal_1/grants", {"id": "grt_1"}, status=201)
    terms = ("--priority", "10", "--expires", "2027-01-01T00:00:00Z")
    assert steelyard("wallets", "grant", "5", "--tenant", "ten_1", *terms, "--yes").code == 0
    sent = control.asked[-1].body
    assert (sent["priority"], sent["expires_at"]) == (10, "2027-01-01T00:00:00Z")
    assert "starts_at" not in sent
    row = {"id": "grt_1", "state": "active", "remaining": "3.5", "burned": "1.5", "expired": "0"}
    control.lists("/wallets/wal_1/grants", row)
    shown = steelyard("wallets", "grants", "--tenant", "ten_1").out
    assert [word in shown for word in ("active", "3.5", "1.5", "REMAINING")] == [True] * 4
