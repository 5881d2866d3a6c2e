"""Wallets: exact grants, credit limits, entries; each act in the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.control.schemas import picos
from app.core.money import format_picos
from tests.app.control.world import World


@pytest.fixture
async def wallet(world: World) -> dict[str, Any]:
    tenant = await world.tenant("Acme")
    return dict((await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json())


async def _grant(world: World, wallet: dict[str, Any], amount: str, **facts: str) -> dict[str, Any]:
    body = {"amount": amount, "kind": "purchased", "reason": "order", **facts}
    return await world.made(f"/wallets/{wallet['id']}/grants", body, **{"idempotency-key": amount})


@given(st.integers(min_value=1, max_value=10**36 - 1))
def test_money_comes_back_from_its_text_to_the_pico(amount: int) -> None:
    assert picos(format_picos(amount)) == amount


async def test_a_balance_is_the_exact_sum_of_grants_of_any_size(world: World, wallet: dict[str, Any]) -> None:
    amounts = ["0.000000000001", "99999999999999999999.999999999999", "0.1", "0.2"]
    for amount in amounts:
        await _grant(world, wallet, amount)
    shown = (await world.operator.get(f"/api/v1/tenants/{wallet['tenant_id']}/wallet")).json()
    assert shown["posted"] == "100000000000000000000.3"
    entries = (await world.operator.get(f"/api/v1/wallets/{wallet['id']}/entries")).json()["data"]
    assert [entry["amount"] for entry in entries] == amounts[::-1]
    grants = (await world.operator.get(f"/api/v1/wallets/{wallet['id']}/grants")).json()["data"]
    assert [grant["amount"] for grant in grants] == amounts


@pytest.mark.parametrize(
    "amount",
    ["0", "-1", "1e3", "0.0000000000001", "1,5", "NaN", "", "Infinity", "0x10", 1, 1.5, None, "9" * 25],
)
async def test_what_is_no_exact_amount_is_refused(world: World, wallet: dict[str, Any], amount: Any) -> None:
    body = {"amount": amount, "kind": "promo", "reason": "gift"}
    answer = await world.operator.post(
        f"/api/v1/wallets/{wallet['id']}/grants", json=body, headers={"idempotency-key": "k"}
    )
    assert answer.status_code == 400


async def test_entries_are_paged_newest_first(world: World, wallet: dict[str, Any]) -> None:
    for amount in ("1", "2", "3"):
        await _grant(world, wallet, amount)
    path = f"/api/v1/wallets/{wallet['id']}/entries"
    first = (await world.operator.get(path, params={"limit": 2})).json()
    second = (await world.operator.get(path, params={"limit": 2, "after": first["next"]})).json()
    assert [entry["amount"] for entry in first["data"] + second["data"]] == ["3", "2", "1"]
    assert second["next"] is None


async def test_a_credit_limit_widens_what_is_available_and_is_audited(
    world: World, wallet: dict[str, Any]
) -> None:
    headers = {"idempotency-key": "limit"}
    path = f"/api/v1/wallets/{wallet['id']}"
    answer = await world.operator.patch(path, json={"credit_limit": "2.5"}, headers=headers)
    assert (answer.json()["posted"], answer.json()["available"]) == ("0", "2.5")
    lowered = await world.operator.patch(path, json={"credit_limit": "-1"}, headers={"idempotency-key": "x"})
    assert lowered.status_code == 400
    row = (await world.operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"][0]
    assert (row["action"], row["before"], row["after"]) == (
        "wallet.set_credit_limit",
        {"credit_limit": "0"},
        {"credit_limit": "2.5"},
    )


async def test_one_reference_with_another_amount_is_a_conflict(world: World, wallet: dict[str, Any]) -> None:
    await _grant(world, wallet, "1", reference="order 1")
    body = {"amount": "2", "kind": "purchased", "reason": "order", "reference": "order 1"}
    answer = await world.operator.post(
        f"/api/v1/wallets/{wallet['id']}/grants", json=body, headers={"idempotency-key": "other"}
    )
    assert answer.status_code == 409


async def test_the_longest_key_is_taken_for_a_grant_without_a_reference(
    world: World, wallet: dict[str, Any]
) -> None:
    body = {"amount": "1", "kind": "purchased", "reason": "order"}
    path, headers = f"/api/v1/wallets/{wallet['id']}/grants", {"idempotency-key": "k" * 255}
    assert (await world.operator.post(path, json=body, headers=headers)).status_code == 201


async def test_a_grant_tells_where_its_money_is_and_the_wallet_what_expires_next(
    world: World, wallet: dict[str, Any]
) -> None:
    soon, later = "2036-01-01T00:00:00Z", "2037-01-01T00:00:00Z"
    first = await _grant(world, wallet, "3", expires_at=later, starts_at="2035-01-01T00:00:00Z")
    await _grant(world, wallet, "2", expires_at=soon)
    assert (first["state"], first["remaining"], first["priority"]) == ("waiting", "0", 100)
    path = f"/api/v1/wallets/{wallet['id']}/grants"
    shown = [
        (row["state"], row["remaining"], row["burned"], row["expired"], row["expires_at"])
        for row in (await world.operator.get(path)).json()["data"]
    ]
    assert shown == [("waiting", "0", "0", "0", later), ("active", "2", "0", "0", soon)]
    told = (await world.operator.get(f"/api/v1/tenants/{wallet['tenant_id']}/wallet")).json()
    assert (told["posted"], told["expires_next"], told["returned"]) == ("2", {"at": soon, "amount": "2"}, "0")


@pytest.mark.parametrize(
    "terms",
    [
        {"priority": -1},
        {"priority": 1001},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"starts_at": "2036-01-01T00:00:00Z", "expires_at": "2036-01-01T00:00:00Z"},
        {"starts_at": "2036-01-01T00:00:00"},
    ],
)
async def test_terms_under_which_nothing_could_burn_are_refused(
    world: World, wallet: dict[str, Any], terms: dict[str, Any]
) -> None:
    body = {"amount": "1", "kind": "promo", "reason": "gift", **terms}
    path = f"/api/v1/wallets/{wallet['id']}/grants"
    answer = await world.operator.post(path, json=body, headers={"idempotency-key": "k"})
    assert answer.status_code == 400, answer.text
