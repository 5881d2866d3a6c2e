"""API keys: shown once, kept as a digest, rotated with an overlap, revoked for good."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.app.control.world import World


@pytest.fixture
async def project(world: World) -> dict[str, Any]:
    tenant = await world.tenant("Acme")
    return await world.made(f"/tenants/{tenant['id']}/projects", {"name": "one"})


async def _new(world: World, project: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return await world.made(f"/projects/{project['id']}/keys", {"name": "k", **facts})


async def _usage(world: World, secret: str) -> httpx.Response:
    return await world.client(secret).get("/api/v1/usage")


async def test_a_key_is_shown_once_and_never_again(world: World, project: dict[str, Any]) -> None:
    made = await _new(world, project)
    shown = (await world.operator.get(f"/api/v1/keys/{made['id']}")).json()
    assert "key" not in shown
    assert made["key"].startswith(shown["prefix"])
    assert made["key"].endswith(shown["last_four"])
    assert len(shown["prefix"]) + len(shown["last_four"]) < 20


async def test_no_secret_is_kept_anywhere_in_the_database(world: World, project: dict[str, Any]) -> None:
    headers = {"idempotency-key": "k1"}
    made = await world.made(f"/projects/{project['id']}/keys", {"name": "k"}, **headers)
    token = await world.made("/access-tokens", {"name": "t"}, **{"idempotency-key": "k2"})
    await world.member("finance")
    secrets = (made["key"][6:], token["token"][4:], "a long enough password")
    async with world.engine.connect() as connection:
        names = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        for table in (await connection.execute(text(names))).scalars().all():
            rows = (await connection.execute(text(f'SELECT t::text FROM "{table}" t'))).scalars().all()
            assert not [row for row in rows for secret in secrets if secret in row], table


async def test_rotation_gives_a_successor_and_the_old_key_the_overlap(
    world: World, project: dict[str, Any]
) -> None:
    old = await _new(world, project, models=["model-a"], scopes=["usage:read"])
    new = await world.made(f"/keys/{old['id']}/rotate", {"overlap_s": 60})
    assert (new["rotated_from"], new["scopes"], new["models"]) == (old["id"], ["usage:read"], ["model-a"])
    assert (await world.operator.get(f"/api/v1/keys/{old['id']}")).json()["state"] == "expiring"
    assert (await _usage(world, old["key"])).status_code == 200
    assert (await _usage(world, new["key"])).status_code == 200
    world.clock.advance(60)
    assert (await _usage(world, old["key"])).status_code == 401
    assert (await _usage(world, new["key"])).status_code == 200
    assert (await world.operator.get(f"/api/v1/keys/{old['id']}")).json()["state"] == "expired"


async def test_a_key_is_rotated_once(world: World, project: dict[str, Any]) -> None:
    old = await _new(world, project)
    await world.made(f"/keys/{old['id']}/rotate")
    again = await world.operator.post(f"/api/v1/keys/{old['id']}/rotate")
    assert again.status_code == 409


async def test_rotation_never_lengthens_a_life(world: World, project: dict[str, Any]) -> None:
    old = await _new(world, project, expires_at="2026-09-21T14:13:50Z")
    new = await world.made(f"/keys/{old['id']}/rotate", {"overlap_s": 3600})
    shown = (await world.operator.get(f"/api/v1/keys/{old['id']}")).json()
    assert shown["expires_at"] == new["expires_at"] == "2026-09-21T14:13:50Z"


async def test_revocation_is_for_good_and_may_be_repeated(world: World, project: dict[str, Any]) -> None:
    key = await _new(world, project)
    first = await world.made(f"/keys/{key['id']}/revoke")
    world.clock.advance(5)
    assert await world.made(f"/keys/{key['id']}/revoke") == first
    assert (await _usage(world, key["key"])).status_code == 401
    assert (await world.operator.post(f"/api/v1/keys/{key['id']}/rotate")).status_code == 409


async def test_a_key_without_the_scope_reads_no_usage(world: World, project: dict[str, Any]) -> None:
    key = await _new(world, project, scopes=["inference"])
    assert (await _usage(world, key["key"])).status_code == 403


async def test_keys_of_a_suspended_tenant_or_an_archived_project_are_refused(
    world: World, project: dict[str, Any]
) -> None:
    key = await _new(world, project)
    await world.operator.patch(f"/api/v1/projects/{project['id']}", json={"status": "archived"})
    assert (await _usage(world, key["key"])).json()["error"]["code"] == "project_archived"
    assert (await world.operator.post(f"/api/v1/projects/{project['id']}/keys", json={"name": "n"})).is_error
    await world.operator.patch(f"/api/v1/tenants/{project['tenant_id']}", json={"status": "suspended"})
    assert (await _usage(world, key["key"])).json()["error"]["code"] == "tenant_suspended"


async def test_lists_go_on_where_the_page_before_ended(world: World, project: dict[str, Any]) -> None:
    made = [(await _new(world, project, name=f"k{number}"))["id"] for number in range(5)]
    path, seen, after = f"/api/v1/projects/{project['id']}/keys", [], None
    while True:
        params = {"limit": 2} | ({"after": after} if after else {})
        page = (await world.operator.get(path, params=params)).json()
        seen += [row["id"] for row in page["data"]]
        after = page["next"]
        assert page["has_more"] is (after is not None)
        if after is None:
            break
    assert seen == made
