"""Limits that change under traffic: no ring of waiters, and a bucket that is never overfull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from app.core import ids
from app.core.ids import AllowanceId
from billing.quota.model import LeaseReport, Need, Rate, Sync
from billing.quota.wire import arguments, read_answer
from tests.billing.quota.desk import SYNC
from tests.billing.quota.tenancy import Tenancy, each, open_tenancy
from tests.database import Database

ROUNDS = 12


@pytest_asyncio.fixture
async def tenancy(database: Database) -> AsyncIterator[Tenancy]:
    async with open_tenancy(database) as opened:
        yield opened


def team(amount: int) -> tuple[object, ...]:
    return (
        each("tenant", "tokens", "month", amount),
        each("tenant", "concurrent", "running", amount),
        each("key", "requests", "minute", amount),
    )


async def test_edits_new_keys_and_syncs_over_many_tenants_never_deadlock(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(*team(1000))  # type: ignore[arg-type]
    tenants = [tenancy.tenant_id, *[await tenancy.tenant() for _ in range(7)]]
    projects = {tenant: await tenancy.project(tenant_id=tenant) for tenant in tenants}
    for tenant in reversed(tenants):
        await tenancy.key(projects[tenant], tenant_id=tenant)
        await tenancy.assign(plan, tenant_id=tenant)
    lent = await tenancy.pool.fetch("SELECT id, window_kind, limit_amount FROM allowance ORDER BY random()")
    rate = Rate(1000, 1000)
    needs = [Need(row["id"], 1, rate if row["window_kind"] == "minute" else None) for row in lent]

    async def syncs() -> None:
        incarnation = ids.incarnation_id()
        await tenancy.pool.execute("INSERT INTO incarnation (id, host) VALUES ($1, 'test')", incarnation)
        for sequence in range(1, ROUNDS + 1):
            message = Sync(sequence, (), tuple((need,) for need in needs))
            answer = read_answer(await tenancy.pool.fetchval(SYNC, *arguments(incarnation, message)))
            assert answer.asks is not None

    async def edits() -> None:
        for round_ in range(ROUNDS):
            await tenancy.replace(plan, *team(1000 + round_))  # type: ignore[arg-type]

    async def overrides() -> None:
        for round_ in range(ROUNDS):
            await tenancy.revoke(
                await tenancy.override(tenancy.tenant_id, each("tenant", "tokens", "month", 500 + round_))
            )

    async def keys() -> None:
        for tenant in tenants:
            await tenancy.key(projects[tenant], tenant_id=tenant)

    await asyncio.gather(syncs(), syncs(), edits(), overrides(), keys())
    living = await tenancy.pool.fetch(
        "SELECT DISTINCT limit_amount FROM allowance WHERE ended_at IS NULL AND limit_source IS NOT NULL"
    )
    assert [int(row["limit_amount"]) for row in living] == [1000 + ROUNDS - 1]


async def bucket(tenancy: Tenancy) -> tuple[int, int, int]:
    """(what a rate's bucket has, what is lent of it, what it can hold)."""
    row = await tenancy.pool.fetchrow(
        "SELECT div(level_micros, 1000000) AS level, burst,"
        " (SELECT coalesce(sum(granted - settled - returned), 0) FROM lease"
        " WHERE allowance_id = a.id) AS lent"
        " FROM allowance a WHERE window_kind = 'minute'"
    )
    assert row is not None
    return int(row["level"]), int(row["lent"]), int(row["burst"])


async def test_a_rate_that_is_lowered_keeps_what_fits_beside_what_is_lent(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(each("tenant", "tokens", "minute", 600))
    await tenancy.assign(plan)
    allowance_id = AllowanceId(await tenancy.pool.fetchval("SELECT id FROM allowance"))
    incarnation = ids.incarnation_id()
    await tenancy.pool.execute("INSERT INTO incarnation (id, host) VALUES ($1, 'test')", incarnation)
    message = Sync(1, (LeaseReport(allowance_id, 0, 0),), ((Need(allowance_id, 200, Rate(600, 600)),),))
    await tenancy.pool.fetchval(SYNC, *arguments(incarnation, message))
    assert await bucket(tenancy) == (400, 200, 600)
    await tenancy.replace(plan, each("tenant", "tokens", "minute", 300))
    assert await bucket(tenancy) == (100, 200, 300)
    await tenancy.replace(plan, each("tenant", "tokens", "minute", 100))
    assert await bucket(tenancy) == (0, 200, 100)


async def test_a_rate_that_is_raised_fills_at_its_new_speed_from_what_it_had(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(each("tenant", "tokens", "minute", 60, burst=10))
    await tenancy.assign(plan)
    await tenancy.pool.execute(
        "UPDATE allowance SET level_micros = 0, level_at = now() - interval '3 seconds'"
    )
    await tenancy.replace(plan, each("tenant", "tokens", "minute", 6000, burst=10_000))
    level, _, burst = await bucket(tenancy)
    assert (3 <= level <= 10, burst) == (True, 10_000)
