"""Same key, same body: one effect and one answer, also when both come at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.app.control.world import World

GRANT = {"amount": "0.000000000001", "kind": "purchased", "reason": "order 1"}


@pytest.fixture
async def grants(world: World) -> str:
    """Where grants of a fresh tenant's wallet are made."""
    tenant = await world.tenant("Acme")
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    return f"/api/v1/wallets/{wallet['id']}/grants"


async def _grant(world: World, path: str, *, key: str, **changes: Any) -> httpx.Response:
    return await world.operator.post(path, json=GRANT | changes, headers={"idempotency-key": key})


async def _count(world: World, table: str) -> int:
    async with world.engine.connect() as connection:
        return int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


async def test_the_same_write_again_gives_the_stored_answer_and_no_second_effect(
    world: World, grants: str
) -> None:
    first = await _grant(world, grants, key="k1")
    acts = await _count(world, "audit_log")
    second = await _grant(world, grants, key="k1")
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert await _count(world, "wallet_grant") == 1
    assert await _count(world, "audit_log") == acts


async def test_the_same_key_with_another_body_is_a_conflict(world: World, grants: str) -> None:
    await _grant(world, grants, key="k1")
    other = await _grant(world, grants, key="k1", amount="2")
    assert other.status_code == 409
    assert other.json()["error"]["code"] == "conflict"
    assert await _count(world, "wallet_grant") == 1


async def test_the_same_key_at_another_route_is_a_conflict(world: World, grants: str) -> None:
    await _grant(world, grants, key="k1")
    other = await world.operator.post("/api/v1/tenants", json=GRANT, headers={"idempotency-key": "k1"})
    assert other.status_code == 409


async def test_of_many_writes_at_once_with_one_key_one_acts_and_all_get_its_answer(
    world: World, grants: str
) -> None:
    answers = await asyncio.gather(*(_grant(world, grants, key="k1") for _ in range(6)))
    assert [answer.status_code for answer in answers] == [201] * 6
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await _count(world, "wallet_grant") == 1


async def test_rivals_with_one_key_and_other_bodies_make_one_grant(world: World, grants: str) -> None:
    answers = await asyncio.gather(
        *(_grant(world, grants, key="k1", amount=str(amount)) for amount in range(1, 6))
    )
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]
    assert await _count(world, "wallet_grant") == 1


async def test_one_reference_under_two_keys_is_one_grant(world: World, grants: str) -> None:
    answers = await asyncio.gather(
        *(_grant(world, grants, key=key, reference="order 1") for key in ("k1", "k2", "k3"))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_write_that_failed_may_be_tried_again_with_its_key(world: World, grants: str) -> None:
    failed = await _grant(world, grants, key="k1", amount="0")
    assert failed.status_code == 400
    assert (await _grant(world, grants, key="k1")).status_code == 201


async def test_money_does_not_move_without_a_key(world: World, grants: str) -> None:
    answer = await world.operator.post(grants, json=GRANT)
    assert answer.status_code == 400
    assert answer.json()["error"]["fields"][0]["path"] == "header.idempotency-key"
    wallet = grants.removesuffix("/grants")
    assert (await world.operator.patch(wallet, json={"credit_limit": "1"})).status_code == 400


async def test_two_members_may_use_the_same_key(world: World, grants: str) -> None:
    await _grant(world, grants, key="k1")
    finance = await world.member("finance")
    answer = await finance.post(grants, json=GRANT | {"amount": "3"}, headers={"idempotency-key": "k1"})
    assert answer.status_code == 201
    assert await _count(world, "wallet_grant") == 2


async def test_a_secret_is_not_kept_for_a_replay(world: World) -> None:
    tenant = await world.tenant("Acme")
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "one"})
    path, headers = f"/api/v1/projects/{project['id']}/keys", {"idempotency-key": "k1"}
    made = (await world.operator.post(path, json={"name": "a"}, headers=headers)).json()
    again = await world.operator.post(path, json={"name": "a"}, headers=headers)
    assert again.status_code == 409
    assert again.json()["error"]["key_id"] == made["id"]
    assert made["key"] not in again.text
    assert await _count(world, "api_key") == 1


async def test_a_replay_needs_the_scope_that_the_write_needed(world: World, grants: str) -> None:
    finance = await world.member("finance")
    headers = {"idempotency-key": "k1"}
    assert (await finance.post(grants, json=GRANT, headers=headers)).status_code == 201
    async with world.engine.begin() as connection:
        demote = text("UPDATE member SET status = 'disabled' WHERE role = 'finance'")
        await connection.execute(demote)
    assert (await finance.post(grants, json=GRANT, headers=headers)).status_code == 401


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_an_impossible_key_is_refused(world: World, grants: str, key: str) -> None:
    answer = await _grant(world, grants, key=key)
    assert answer.status_code == 400
    assert await _count(world, "wallet_grant") == 0
