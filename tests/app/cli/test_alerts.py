"""`steelyard alerts` tells a webhook from a mailbox, shows a secret once, and replaces the same rule."""

from __future__ import annotations

from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl

ENDPOINT = {"id": "aep_1", "kind": "webhook", "status": "active"}
RULE = {"id": "alr_1", "scope_kind": "task", "scope_id": None, "what": None, "window": None}


def test_a_webhook_is_added_with_its_secret_shown_this_once(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", {"id": "ten_1"})
    control.gives("POST /alert-endpoints", {**ENDPOINT, "secret": "whsec_abc"}, status=201)
    result = steelyard("alerts", "add", "https://hooks.example/x")
    assert "whsec_abc" in result.out
    assert "this once" in result.err
    assert control.asked[-1].body == {"url": "https://hooks.example/x", "tenant_id": "ten_1"}


def test_a_mailbox_is_told_from_a_url(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives("POST /alert-endpoints", {**ENDPOINT, "secret": None}, status=201)
    result = steelyard("alerts", "add", "a@example.com", "--name", "finance", "--tenant", "ten_2")
    assert control.asked[-1].body == {"email": "a@example.com", "name": "finance", "tenant_id": "ten_2"}
    assert "this once" not in result.err


def test_a_rule_takes_the_place_of_the_one_for_the_same_limits(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/alert-rules", {**RULE, "scope_kind": None}, RULE)
    control.gives("PATCH /alert-rules/alr_1", RULE)
    assert steelyard("alerts", "set", "--tenant", "t", "--scope-kind", "task", "--percent", "90").code == 0
    assert control.asked[-1].body == {"percents": [90], "remaining": None}
    control.gives("POST /alert-rules", RULE, status=201)
    assert steelyard("alerts", "set", "--tenant", "t", "--what", "tokens", "--silent").code == 0
    assert (control.asked[-1].method, control.asked[-1].body["percents"]) == ("POST", [])


def test_a_rule_says_thresholds_or_silence(steelyard: Steelyard, control: FakeControl) -> None:
    assert steelyard("alerts", "set", "--tenant", "t").code == 2
    assert steelyard("alerts", "set", "--tenant", "t", "--silent", "--percent", "5").code == 2
    assert control.asked == []


def test_dead_deliveries_are_shown_with_their_error_and_retried(
    steelyard: Steelyard, control: FakeControl
) -> None:
    dead = {"id": "ald_1", "status": "dead", "attempts": 11, "last_error": "it answered 500"}
    control.lists("/alert-deliveries", dead)
    result = steelyard("alerts", "deliveries", "--status", "dead")
    assert "it answered 500" in result.out
    assert "steelyard alerts retry" in result.err
    control.gives("POST /alert-deliveries/ald_1/retry", {**dead, "status": "pending"})
    assert "pending" in steelyard("alerts", "retry", "ald_1").out


def test_an_endpoint_is_removed_after_a_confirmation(steelyard: Steelyard, control: FakeControl) -> None:
    assert steelyard("alerts", "remove", "aep_1").code == 6
    control.gives("DELETE /alert-endpoints/aep_1", {**ENDPOINT, "status": "removed"})
    assert "removed" in steelyard("alerts", "remove", "aep_1", "--yes").out
