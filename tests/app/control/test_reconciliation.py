"""The report of reconciliation: proven on demand, kept, and for the operator's staff alone."""

from __future__ import annotations

import asyncpg
import pytest

from tests.app.control.world import World

PAIRS = {
    "journal_events",
    "conflicts",
    "events_rollups",
    "events_links",
    "events_ledger",
    "corrections_ledger",
    "grants_ledger",
    "double_entry",
    "ledger_wallets",
    "leases_allowances",
    "engine_events",
}
DAY = "2026-09-21"
"""The day of the world's clock."""


async def test_before_the_first_proof_nothing_is_claimed(world: World) -> None:
    report = (await world.operator.get("/api/v1/reconciliation/latest")).json()
    assert report == {
        "first": DAY,
        "last": DAY,
        "agree": True,
        "proofs": [],
        "engines": [],
        "gaps": [],
    }


async def test_a_day_is_reconciled_on_demand_and_remembered(world: World) -> None:
    await world.tenant("Acme")
    report = await world.made(f"/reconciliation/{DAY}")
    assert {proof["pair"] for proof in report["proofs"]} == PAIRS
    assert (report["agree"], report["gaps"]) == (True, [])
    standing = {proof["pair"] for proof in report["proofs"] if proof["day"] is None}
    assert standing == {"journal_events", "ledger_wallets", "leases_allowances"}
    latest = (await world.operator.get("/api/v1/reconciliation/latest")).json()
    assert latest == report


async def test_a_gap_keeps_when_it_was_first_seen_until_it_is_resolved(world: World) -> None:
    tenant = await world.tenant("Acme")
    await _owner(world, "UPDATE allowance SET spent = 12")
    first = (await world.made(f"/reconciliation/{DAY}?pair=ledger_wallets"))["gaps"]
    assert [(gap["kind"], gap["unit"], gap["left"], gap["right"], gap["difference"]) for gap in first] == [
        ("allowance_differs", "picos", "0", "-12", "12")
    ]
    world.clock.advance(60)
    again = (await world.made(f"/reconciliation/{DAY}?pair=ledger_wallets"))["gaps"]
    assert again[0]["first_seen_at"] == first[0]["first_seen_at"] < again[0]["last_seen_at"]
    await _owner(world, "UPDATE allowance SET spent = 0")
    world.clock.advance(60)
    mended = await world.made(f"/reconciliation/{DAY}?pair=ledger_wallets")
    assert (mended["agree"], mended["gaps"]) == (True, [])
    resolved = await _owner(world, "SELECT resolved_at FROM reconcile_gap")
    assert resolved[0][0] is not None
    assert tenant["id"]


async def test_an_acknowledged_gap_stays_on_record_and_alarms_again_once_its_numbers_change(
    world: World,
) -> None:
    await world.tenant("Acme")
    await _owner(world, "UPDATE allowance SET spent = 12")
    prove = f"/reconciliation/{DAY}?pair=ledger_wallets"
    (gap,) = (await world.made(prove))["gaps"]
    seen = await world.made(f"/reconciliation/gaps/{gap['id']}/acknowledge", {"because": "a test"})
    assert (seen["acknowledged_because"], seen["difference"]) == ("a test", "12")
    world.clock.advance(60)
    again = await world.made(prove)
    assert (again["agree"], [each["acknowledged_because"] for each in again["gaps"]]) == (True, ["a test"])
    await _owner(world, "UPDATE allowance SET spent = 13")
    world.clock.advance(60)
    changed = await world.made(prove)
    assert (changed["agree"], [each["acknowledged_because"] for each in changed["gaps"]]) == (False, [None])
    missing = await world.operator.post(
        "/api/v1/reconciliation/gaps/999/acknowledge", json={"because": "nothing"}
    )
    assert missing.status_code == 404
    log = (await world.operator.get("/api/v1/audit-log?limit=1")).json()["data"]
    assert (log[0]["action"], log[0]["after"]) == ("reconciliation.acknowledge", {"because": "a test"})


async def test_one_gap_that_nobody_saw_is_told_behind_any_number_of_acknowledged_ones(world: World) -> None:
    gap = "INSERT INTO reconcile_gap (pair, day, scope, unit, kind, explanation, first_seen_at, last_seen_at"
    seen = f"SELECT 'conflicts', DATE '{DAY}', 'req_' || n, 'records', 'conflict', '', now(), now()"
    await _owner(
        world,
        f"{gap}, acknowledged_at, acknowledged_by, acknowledged_because) "
        f"{seen}, now(), 'mem_1', 'known' FROM generate_series(1, 500) n",
    )
    await _owner(world, f"{gap}) {seen} FROM generate_series(501, 501) n")
    report = (await world.operator.get(f"/api/v1/reconciliation?from={DAY}&to={DAY}")).json()
    assert (report["agree"], len(report["gaps"]), report["gaps"][0]["scope"]) == (False, 500, "req_501")


async def test_only_days_that_have_begun_can_be_reconciled(world: World) -> None:
    answer = await world.operator.post("/api/v1/reconciliation/2026-09-22", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "day")
    answer = await world.operator.get("/api/v1/reconciliation?from=2026-09-21&to=2026-09-20")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "from")


@pytest.mark.parametrize("role", ["developer", "viewer", "finance"])
async def test_no_member_of_a_tenant_sees_the_operators_books(world: World, role: str) -> None:
    tenant = await world.tenant("Acme")
    member = await world.member(role, tenant["id"])
    assert (await member.get("/api/v1/reconciliation")).status_code == 403
    assert (await member.post(f"/api/v1/reconciliation/{DAY}", json={})).status_code == 403


async def test_finance_of_the_operator_sees_them(world: World) -> None:
    finance = await world.member("finance")
    assert (await finance.get("/api/v1/reconciliation/latest")).status_code == 200


async def _owner(world: World, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(world.database.owner_url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
