"""What the verbs send, and what they show of the answers."""

from __future__ import annotations

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
