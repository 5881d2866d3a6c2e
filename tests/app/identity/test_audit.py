"""The audit log: every write is in it, no secret is, and nobody rewrites it unnoticed."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.core.clock import from_ms
from app.core.database import connect_engine
from app.identity import audit
from app.identity.audit import Trail
from tests.app.control.world import World


async def _append(world: World, *names: str) -> None:
    async with world.engine.begin() as connection:
        trail = Trail("mem_test", "192.0.2.7")
        for name in names:
            trail.note("thing.change", name, before={"weight": 1}, after={"weight": 2, "name": "ü\u2028"})
        await audit.append(connection, trail, now=from_ms(world.clock.now_ms()))


async def _verified(world: World) -> int | None:
    async with world.engine.connect() as connection:
        return await audit.verify(connection)


async def test_writers_at_once_make_one_unbroken_chain(world: World) -> None:
    await asyncio.gather(*(_append(world, f"a{number}", f"b{number}") for number in range(8)))
    assert await _verified(world) is None
    async with world.engine.connect() as connection:
        rows = (await connection.execute(text("SELECT sequence FROM audit_log ORDER BY 1"))).scalars().all()
    assert rows == list(range(1, len(rows) + 1))
    assert len(rows) >= 16


@pytest.mark.parametrize(
    ("tampering", "first_broken"),
    [
        ("UPDATE audit_log SET actor = 'mem_other' WHERE sequence = 4", 4),
        ("UPDATE audit_log SET after = '{\"weight\": 3}' WHERE sequence = 5", 5),
        ("UPDATE audit_log SET at = at + interval '1 microsecond' WHERE sequence = 3", 3),
        ("DELETE FROM audit_log WHERE sequence = 4", 4),
        ("UPDATE audit_log SET hash = decode(repeat('00', 32), 'hex') WHERE sequence = 6", 6),
    ],
)
async def test_what_was_rewritten_by_the_tables_owner_is_found(
    world: World, tampering: str, first_broken: int
) -> None:
    await _append(world, "a", "b", "c", "d", "e")
    assert await _verified(world) is None
    owner = connect_engine(world.database.owner_url)
    async with owner.begin() as connection:
        await connection.execute(text("ALTER TABLE audit_log DISABLE TRIGGER stands"))
        await connection.execute(text(tampering))
    await owner.dispose()
    assert await _verified(world) == first_broken


@pytest.mark.parametrize("statement", ["UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log"])
async def test_the_running_processes_cannot_rewrite_it_at_all(world: World, statement: str) -> None:
    await _append(world, "a")
    with pytest.raises(DBAPIError):
        async with world.engine.begin() as connection:
            await connection.execute(text(statement))


async def test_an_act_that_is_rolled_back_leaves_no_entry(world: World) -> None:
    before = (await world.operator.get("/api/v1/audit-log")).json()["data"]
    await world.operator.post(
        "/api/v1/tenants", json={"name": "A", "currency": "USD", "timezone": "no/where"}
    )
    assert (await world.operator.get("/api/v1/audit-log")).json()["data"] == before


async def test_each_write_says_who_what_and_from_where_and_holds_no_secret(world: World) -> None:
    tenant = await world.tenant("Acme")
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "p"})
    key = await world.made(f"/projects/{project['id']}/keys", {"name": "k"})
    rotated = await world.made(f"/keys/{key['id']}/rotate", {"overlap_s": 5})
    await world.made(f"/keys/{rotated['id']}/revoke")
    page = (await world.operator.get("/api/v1/audit-log", params={"limit": 6})).json()
    assert [row["action"] for row in page["data"]] == [
        "api_key.revoke",
        "api_key.rotate",
        "api_key.create",
        "project.create",
        "wallet.open",
        "tenant.create",
    ]
    me = (await world.operator.get("/api/v1/me")).json()["id"]
    assert {row["actor"] for row in page["data"]} == {me}
    assert {row["from_address"] for row in page["data"]} == {"127.0.0.1"}
    assert page["data"][0]["before"]["revoked_at"] is None
    assert page["data"][0]["after"]["revoked_at"]
    assert not [secret for secret in (key["key"], rotated["key"]) if secret in str(page)]
    older = (await world.operator.get("/api/v1/audit-log", params={"after": page["next"]})).json()
    assert older["data"][0]["sequence"] == page["data"][-1]["sequence"] - 1
    assert await _verified(world) is None


async def test_a_secret_that_slips_into_an_entry_is_blotted_out(world: World) -> None:
    async with world.engine.begin() as connection:
        trail = Trail("mem_test")
        trail.note("thing.change", "x", after={"note": "use sk-sy-AAAAAAAAAAAAAAAA", "url": "http://u:pw@h/"})
        await audit.append(connection, trail, now=from_ms(world.clock.now_ms()))
    row = (await world.operator.get("/api/v1/audit-log", params={"object_id": "x"})).json()["data"][0]
    assert row["after"] == {"note": "use [secret]", "url": "http://[secret]@h/"}
