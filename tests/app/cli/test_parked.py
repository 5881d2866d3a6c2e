"""`steelyard parked` asks before it gives up money, and shows why a record was set aside."""

from __future__ import annotations

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

RECORD = {"id": "17", "request_id": "req_1", "reason": "the tenant has no wallet", "resolution": None}


def test_parked_records_are_listed_with_their_reason(steelyard: Steelyard, control: FakeControl) -> None:
    control.lists("/parked-records", RECORD)
    result = steelyard("parked", "list")
    assert result.code == 0
    assert "the tenant has no wallet" in result.out
    assert "steelyard parked retry" in result.err


def test_a_dismissal_needs_a_word_and_a_confirmation(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("POST /parked-records/17/dismiss", {**RECORD, "resolution": "dismissed"})
    assert steelyard("parked", "dismiss", "17").code == 2
    assert steelyard("parked", "dismiss", "17", "--reason", "no price").code == 6
    assert control.asked == []
    result = steelyard("parked", "dismiss", "17", "--reason", "no price", "--yes")
    assert (result.code, control.asked[-1].body) == (0, {"reason": "no price"})
    assert "dismissed" in result.out


def test_a_retry_is_one_call(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("POST /parked-records/17/retry", {**RECORD, "resolution": "posted"})
    assert "posted" in steelyard("parked", "retry", "17").out


def test_a_damaged_incarnation_is_shown_and_released(steelyard: Steelyard, control: FakeControl) -> None:
    damage = {"incarnation_id": "inc_1", "file_offset": 64, "byte_count": 35, "outstanding": "0.5"}
    control.gives("GET /journal-damages", [damage])
    control.gives("POST /journal-damages/inc_1/release", [{**damage, "outstanding": "0"}])
    assert "inc_1" in steelyard("parked", "damages").out
    result = steelyard("parked", "release", "inc_1", "--reason", "looked at", "--yes")
    assert (result.code, control.asked[-1].body) == (0, {"reason": "looked at"})
