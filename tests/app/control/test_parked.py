"""What the settler set aside is seen, posted or given up by the operator's staff, once, and audited."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy import text

from app.core import ids
from app.core.clock import from_ms
from billing.journal import conflicts, damages, parking
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, encode
from billing.journal.posting import park
from billing.journal.tail import Damage
from billing.metering.model import Usage
from tests.app.control.world import World
from tests.app.insights.metered import Traffic, open_traffic, settled

AT = datetime(2026, 9, 21, 12, tzinfo=UTC)
USAGE = Usage(input=700, output=90)


async def parked(traffic: Traffic, admitted: Admitted, end: Settled, *, start: int = 100) -> str:
    """The number of a charge that the settler parked."""
    charge = Charge(start, start + 100, admitted, end, encode(admitted), encode(end))
    world = traffic.world
    async with world.engine.begin() as connection:
        now = from_ms(world.clock.now_ms())
        await park(connection, [(charge, "why")], incarnation_id=traffic.incarnation_id, now=now)
    [row, *_] = (await world.operator.get("/api/v1/parked-records")).json()["data"]
    return str(row["id"])


async def outstanding(traffic: Traffic) -> int:
    async with traffic.world.engine.connect() as connection:
        query = "SELECT sum(granted - settled - returned) FROM lease WHERE incarnation_id = :i"
        return int((await connection.execute(text(query), {"i": traffic.incarnation_id})).scalar_one())


async def actions(world: World) -> list[str]:
    rows = (await world.operator.get("/api/v1/audit-log")).json()["data"]
    return [row["action"] for row in rows]


async def test_a_mended_record_is_posted_once_and_audited(world: World) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, USAGE)
    number = await parked(traffic, admitted, end)
    shown = (await world.operator.get(f"/api/v1/parked-records/{number}")).json()
    assert (shown["request_id"], shown["reason"], shown["resolution"]) == (admitted.request_id, "why", None)
    assert (shown["charge"]["tokens"], shown["charge"]["cost"]) == (790, shown["holds"][0]["amount"])
    assert (await world.made(f"/parked-records/{number}/retry"))["resolution"] == "posted"
    assert (await world.operator.post(f"/api/v1/parked-records/{number}/retry")).status_code == 404
    assert (await world.operator.get("/api/v1/parked-records")).json()["data"] == []
    resolved = (await world.operator.get("/api/v1/parked-records?resolved=true")).json()["data"]
    assert [(row["id"], row["resolution"]) for row in resolved] == [(number, "posted")]
    explained = (await world.operator.get(f"/api/v1/requests/{admitted.request_id}")).json()
    assert explained["outcome"] == "completed"
    assert (await actions(world))[0] == "parked_record.retry"


async def test_what_is_still_wrong_is_told_and_the_record_stays(world: World) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    number = await parked(traffic, admitted, msgspec.structs.replace(settled(admitted, USAGE), cost_picos=1))
    refused = await world.operator.post(f"/api/v1/parked-records/{number}/retry")
    assert (refused.status_code, "the cost is not" in refused.text) == (409, True)
    assert (await world.operator.get(f"/api/v1/parked-records/{number}")).json()["resolution"] is None


@pytest.mark.parametrize(
    "changes",
    [{"status": 99_999}, {"bytes_relayed": 2**63}, {"at_ms": 2**60}, {"duration_ms": -5}],
    ids=lambda changes: next(iter(changes)),
)
async def test_what_the_database_refuses_again_is_told_as_a_conflict(
    world: World, changes: dict[str, int]
) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    number = await parked(traffic, admitted, msgspec.structs.replace(settled(admitted, USAGE), **changes))
    refused = await world.operator.post(f"/api/v1/parked-records/{number}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert (await world.operator.get(f"/api/v1/parked-records/{number}")).json()["resolution"] is None


@pytest.mark.parametrize("act", ["retry", "dismiss"])
@pytest.mark.parametrize("here", [True, False])
async def test_a_record_of_a_posted_request_frees_its_hold_only_if_its_event_did_not(
    world: World, act: str, *, here: bool
) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, USAGE)
    before = await outstanding(traffic)
    number = await parked(traffic, admitted, end)
    other = traffic if here else replace(traffic, incarnation_id=ids.incarnation_id())
    await other.post([(admitted, end)])
    await world.made(
        f"/parked-records/{number}/{act}", {"reason": "posted twice"} if act == "dismiss" else None
    )
    assert await outstanding(traffic) == before - end.cost_picos


async def test_two_records_of_one_request_free_its_hold_once(world: World) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, USAGE)
    before = await outstanding(traffic)
    numbers = [await parked(traffic, admitted, end, start=start) for start in (100, 300)]
    for number in numbers:
        await world.made(f"/parked-records/{number}/dismiss", {"reason": "twice"})
    assert await outstanding(traffic) == before - end.cost_picos


async def test_a_dismissed_record_is_never_billed_and_frees_what_it_held(world: World) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, USAGE)
    before = await outstanding(traffic)
    number = await parked(traffic, admitted, end)
    assert (await world.operator.post(f"/api/v1/parked-records/{number}/dismiss", json={})).status_code == 400
    gone = await world.made(f"/parked-records/{number}/dismiss", {"reason": "never priced"})
    assert (gone["resolution"], gone["resolved_because"]) == ("dismissed", "never priced")
    assert await outstanding(traffic) == before - end.cost_picos
    async with world.engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM usage_event"))).scalar_one() == 0
        assert (await connection.execute(text("SELECT sum(spent) FROM allowance"))).scalar_one() == 0
        assert await parking.count(connection) == 0
    again = await world.operator.post(f"/api/v1/parked-records/{number}/dismiss", json={"reason": "x"})
    assert again.status_code == 404
    assert (await actions(world))[0] == "parked_record.dismiss"


async def test_a_damaged_incarnation_is_released_by_an_operator(world: World) -> None:
    traffic = await open_traffic(world)
    async with world.engine.begin() as connection:
        now = from_ms(world.clock.now_ms())
        await damages.tell(connection, traffic.incarnation_id, damage=Damage(64, 99), now=now)
    [found] = (await world.operator.get("/api/v1/journal-damages")).json()
    assert (found["id"], found["byte_count"]) == (f"{traffic.incarnation_id}.64", 35)
    path = f"/journal-damages/{traffic.incarnation_id}/release"
    answer = await world.operator.post(f"/api/v1{path}", json={"reason": "looked at"})
    assert [row["released_because"] for row in answer.json()] == ["looked at"]
    assert await outstanding(traffic) == 0
    assert (await world.operator.post(f"/api/v1{path}", json={"reason": "again"})).status_code == 404
    assert (await actions(world))[0] == "incarnation.release"


async def test_conflicts_are_shown(world: World) -> None:
    traffic = await open_traffic(world)
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, USAGE)
    await traffic.post([(admitted, end)])
    other = encode(settled(admitted, Usage(input=1)))
    charge = Charge(0, 0, admitted, end, encode(admitted), other)
    async with world.engine.begin() as connection:
        now = from_ms(world.clock.now_ms())
        await conflicts.tell_conflicts(connection, [charge], incarnation_id=traffic.incarnation_id, now=now)
    [shown] = (await world.operator.get("/api/v1/usage-conflicts")).json()
    assert shown["request_id"] == admitted.request_id
    assert shown["payload_hash"] != shown["posted_hash"]


async def test_nobody_within_a_tenant_sees_what_was_set_aside(world: World) -> None:
    tenant = await world.tenant("Acme")
    for role in ("finance", "developer", "viewer"):
        member = await world.member(role, tenant["id"])
        for path in ("parked-records", "usage-conflicts", "journal-damages"):
            assert (await member.get(f"/api/v1/{path}")).status_code == 403
        assert (await member.post("/api/v1/parked-records/1/retry")).status_code == 403
