"""Limits as data: which holds, where it comes from, and what becomes of its allowance when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest
import pytest_asyncio

from app.core import ids
from app.core.errors import Conflict, Rejected
from app.core.ids import AllowanceId
from billing.quota import limits, plans
from billing.quota.terms import Subject, check_limit
from tests.billing.quota.tenancy import Tenancy, each, open_tenancy
from tests.database import Database

TPM = each("key", "tokens", "minute", 40_000)
BUDGET = each("project", "picos", "month", 25 * 10**12)
CONCURRENT = each("tenant", "concurrent", "running", 8)


@pytest_asyncio.fixture
async def tenancy(database: Database) -> AsyncIterator[Tenancy]:
    async with open_tenancy(database) as opened:
        yield opened


async def test_a_plan_gives_the_tenant_its_projects_and_its_keys_their_limits(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    key = await tenancy.key(project)
    await tenancy.assign(await tenancy.plan(TPM, BUDGET, CONCURRENT))
    assert await tenancy.amounts() == {
        (tenancy.tenant_id, "concurrent", "running"): 8,
        (project, "picos", "month"): 25 * 10**12,
        (key, "tokens", "minute"): 40_000,
    }
    found = await tenancy.effective(scope_ids=[key])
    assert [(limit.source_kind, limit.source_name, limit.burst) for limit in found] == [
        ("plan", "Team", 40_000)
    ]
    assert found[0].available == 40_000


async def test_a_new_project_and_a_new_key_have_their_limits_in_the_same_commit(tenancy: Tenancy) -> None:
    await tenancy.assign(await tenancy.plan(TPM, BUDGET))
    project = ids.project_id()
    async with tenancy.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'new')", project, tenancy.tenant_id
        )
        assert await connection.fetchval("SELECT count(*) FROM allowance WHERE scope_id = $1", project) >= 1
    key = await tenancy.key(project)
    assert (key, "tokens", "minute") in await tenancy.amounts()


async def test_a_key_that_is_made_while_a_plan_is_assigned_has_its_limits(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    plan = await tenancy.plan(TPM)
    made = await asyncio.gather(
        *(tenancy.key(project) for _ in range(5)),
        tenancy.assign(plan),
        *(tenancy.key(project) for _ in range(5)),
    )
    keys = {key for key in made if isinstance(key, str)}
    assert {scope for scope, _, _ in await tenancy.amounts()} == keys


async def test_an_override_beats_the_plan_and_ends_by_itself_at_its_time(tenancy: Tenancy) -> None:
    key = await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(TPM))
    end = await tenancy.now() + timedelta(milliseconds=300)
    await tenancy.override(key, each("key", "tokens", "minute", 90_000), end=end)
    (before,) = await tenancy.effective()
    assert (before.amount, before.source_kind, before.until) == (90_000, "override", end)
    assert await tenancy.due() == end
    async with asyncio.timeout(10):
        while (await tenancy.amounts())[key, "tokens", "minute"] != 40_000:
            await tenancy.pool.fetchval("SELECT quota_resolve_due(10)")
    assert await tenancy.now() >= end
    (after,) = await tenancy.effective()
    assert after.allowance_id == before.allowance_id


async def test_the_newest_override_counts_and_the_one_before_holds_again_after_it(tenancy: Tenancy) -> None:
    tenant = tenancy.tenant_id
    await tenancy.override(tenant, each("tenant", "requests", "minute", 100))
    second = await tenancy.override(tenant, each("tenant", "requests", "minute", 500))
    assert list((await tenancy.amounts()).values()) == [500]
    await tenancy.revoke(second)
    assert list((await tenancy.amounts()).values()) == [100]
    assert (await tenancy.revoke(second)).revoked_at is not None


async def test_an_unlimited_override_ends_the_limit_and_its_revocation_brings_it_back(
    tenancy: Tenancy,
) -> None:
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    (row,) = await tenancy.rows()
    free = await tenancy.override(tenancy.tenant_id, CONCURRENT, unlimited=True)
    assert await tenancy.rows() == []
    (told,) = await tenancy.effective()
    assert (told.amount, told.allowance_id, told.source_id) == (None, None, free.id)
    await tenancy.revoke(free)
    (again,) = await tenancy.rows()
    assert (again["id"], again["ended_at"]) == (row["id"], None)


async def test_what_was_spent_stays_when_a_limit_is_lowered_below_it(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(each("tenant", "tokens", "month", 1000))
    await tenancy.assign(plan)
    (row,) = (await tenancy.rows())[:1]
    await tenancy.pool.execute("UPDATE allowance SET spent = 700, unleased = 700 WHERE id = $1", row["id"])
    await tenancy.lend(AllowanceId(row["id"]), 200)
    heard: list[str] = []
    listener = await asyncpg.connect(tenancy.url)
    try:
        await listener.add_listener("steelyard_changes", lambda *told: heard.append(str(told[-1])))
        await tenancy.replace(plan, each("tenant", "tokens", "month", 500))
        async with asyncio.timeout(5):
            while len(heard) < 2:
                await asyncio.sleep(0.01)
    finally:
        await listener.close()
    assert f"allowance:{row['id']}" in heard
    assert f"limits:{tenancy.tenant_id}" in heard
    (lowered,) = await tenancy.effective()
    assert (lowered.used, lowered.outstanding, lowered.available) == (700, 200, -400)
    recalled = await tenancy.pool.fetchval(
        "SELECT recall_until > now() FROM allowance WHERE id = $1", row["id"]
    )
    assert recalled


async def test_a_plan_change_takes_effect_at_its_date(tenancy: Tenancy) -> None:
    await tenancy.assign(await tenancy.plan(CONCURRENT, name="Small"))
    start = await tenancy.now() + timedelta(milliseconds=300)
    large = await tenancy.plan(each("tenant", "concurrent", "running", 64), name="Large")
    await tenancy.assign(large, start=start)
    assert list((await tenancy.amounts()).values()) == [8]
    assert await tenancy.due() == start
    async with asyncio.timeout(10):
        while list((await tenancy.amounts()).values()) != [64]:
            await tenancy.pool.fetchval("SELECT quota_resolve_due(10)")
    assert await tenancy.now() >= start
    kept = await tenancy.do(
        lambda c: plans.list_assignments(c, tenant_id=tenancy.tenant_id, after=None, limit=9)
    )
    assert [each.effective_to for each in kept] == [start, None]


async def test_a_scheduled_plan_that_is_withdrawn_leaves_the_one_before(tenancy: Tenancy) -> None:
    await tenancy.assign(await tenancy.plan(CONCURRENT, name="Small"))
    large = await tenancy.plan(name="Large")
    scheduled = await tenancy.assign(large, start=await tenancy.now() + timedelta(days=3))
    with pytest.raises(Conflict, match="scheduled"):
        await tenancy.assign(large)
    await tenancy.do(lambda c: plans.withdraw(c, scheduled.id))
    (left,) = await tenancy.do(
        lambda c: plans.list_assignments(c, tenant_id=tenancy.tenant_id, after=None, limit=9)
    )
    assert left.effective_to is None
    with pytest.raises(Conflict, match="begun"):
        await tenancy.do(lambda c: plans.withdraw(c, left.id))
    with pytest.raises(Rejected):
        await tenancy.do(lambda c: plans.withdraw(c, scheduled.id))


async def test_a_plan_taken_away_ends_its_limits_and_keeps_their_rows(tenancy: Tenancy) -> None:
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    await tenancy.assign(None)
    assert await tenancy.rows() == []
    (ended,) = await tenancy.rows(living=False)
    assert ended["ended_at"] is not None


async def test_a_replaced_set_of_limits_holds_for_all_who_have_the_plan(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(CONCURRENT)
    others = [await tenancy.tenant() for _ in range(3)]
    for tenant_id in (tenancy.tenant_id, *others):
        await tenancy.assign(plan, tenant_id=tenant_id)
    await tenancy.replace(plan, each("tenant", "concurrent", "running", 3))
    found = await tenancy.pool.fetch("SELECT DISTINCT limit_amount FROM allowance WHERE ended_at IS NULL")
    assert [int(row["limit_amount"]) for row in found] == [3]
    holders = await tenancy.pool.fetchval("SELECT count(*) FROM allowance WHERE what = 'concurrent'")
    assert holders == 4


async def test_resolving_again_changes_nothing(tenancy: Tenancy) -> None:
    await tenancy.key(await tenancy.project())
    await tenancy.assign(await tenancy.plan(TPM, BUDGET, CONCURRENT))
    before = (await tenancy.rows(), await tenancy.pool.fetch("SELECT * FROM tenant_limits"))
    await asyncio.gather(*(tenancy.resolve() for _ in range(5)))
    assert (await tenancy.rows(), await tenancy.pool.fetch("SELECT * FROM tenant_limits")) == before


async def test_a_rotated_key_keeps_its_overrides(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    old = await tenancy.key(project)
    await tenancy.override(old, each("key", "tokens", "minute", 7))
    new = await tenancy.key(project, rotated_from=old)
    assert (await tenancy.amounts())[new, "tokens", "minute"] == 7


async def test_an_archived_project_has_no_limits_until_it_opens_again(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    await tenancy.key(project)
    await tenancy.assign(await tenancy.plan(TPM, each("project", "requests", "minute", 9)))
    before = await tenancy.amounts()
    await tenancy.pool.execute("UPDATE project SET status = 'archived' WHERE id = $1", project)
    assert await tenancy.amounts() == {}
    await tenancy.pool.execute("UPDATE project SET status = 'active' WHERE id = $1", project)
    assert await tenancy.amounts() == before


async def test_money_is_only_ever_in_the_tenants_currency(tenancy: Tenancy) -> None:
    dollars = await tenancy.plan(BUDGET, name="Dollars", currency="USD")
    with pytest.raises(Conflict, match="USD"):
        await tenancy.assign(dollars)
    with pytest.raises(asyncpg.CheckViolationError, match="currency"):
        await tenancy.pool.execute(
            "INSERT INTO plan_assignment (id, tenant_id, plan_id, effective_from, created_by)"
            " VALUES ('pas_1', $1, $2, now(), 't')",
            tenancy.tenant_id,
            dollars.id,
        )
    with pytest.raises(Conflict, match="currency"):
        await tenancy.plan(BUDGET, name="None", currency=None)
    await tenancy.assign(await tenancy.plan(CONCURRENT, name="No money", currency=None))


async def test_an_override_is_of_the_tenants_own_scopes_alone(tenancy: Tenancy) -> None:
    foreign = await tenancy.project(tenant_id=await tenancy.tenant())
    with pytest.raises(Rejected):
        await tenancy.override(foreign, BUDGET)
    with pytest.raises(asyncpg.CheckViolationError, match="scope"):
        await tenancy.pool.execute(
            "INSERT INTO limit_override (id, tenant_id, scope_kind, scope_id, what, window_kind, amount,"
            " effective_from, reason, created_by)"
            " VALUES ('ovr_1', $1, 'project', $2, 'picos', 'month', 1, now(), 'r', 't')",
            tenancy.tenant_id,
            foreign,
        )


@pytest.mark.parametrize(
    ("subject", "amount", "burst"),
    [
        (Subject("key", "picos", "minute"), 1, None),
        (Subject("key", "concurrent", "day"), 1, None),
        (Subject("key", "max_output", "month"), 1, None),
        (Subject("key", "tokens", "year"), 1, None),  # type: ignore[arg-type]
        (Subject("task", "tokens", "day"), 1, None),  # type: ignore[arg-type]
        (Subject("key", "tokens", "minute"), -1, None),
        (Subject("key", "tokens", "day"), 1, 5),
        (Subject("key", "tokens", "minute"), None, 5),
        (Subject("key", "tokens", "minute"), 10**16, None),
    ],
)
def test_a_limit_that_can_not_be_is_refused(subject: Subject, amount: int | None, burst: int | None) -> None:
    with pytest.raises(Rejected):
        check_limit(subject, amount=amount, burst=burst)


async def test_an_archived_plan_is_kept_by_who_has_it_and_given_to_nobody(tenancy: Tenancy) -> None:
    plan = await tenancy.plan(CONCURRENT)
    await tenancy.assign(plan)
    now: datetime = await tenancy.now()
    await tenancy.do(lambda c: plans.archive_plan(c, plan.id, now=now))
    assert list((await tenancy.amounts()).values()) == [8]
    other = await tenancy.tenant()
    with pytest.raises(Conflict, match="archived"):
        await tenancy.assign(plan, tenant_id=other)
    assert await tenancy.do(lambda c: plans.list_plans(c, after=None, limit=9)) == []


async def test_overrides_are_listed_with_or_without_those_that_ended(tenancy: Tenancy) -> None:
    first = await tenancy.override(tenancy.tenant_id, CONCURRENT)
    await tenancy.revoke(first)
    second = await tenancy.override(tenancy.tenant_id, CONCURRENT)

    async def listed(*, ended: bool) -> list[str]:
        found = await tenancy.do(
            lambda c: limits.list_overrides(c, tenant_id=tenancy.tenant_id, ended=ended, after=None, limit=9)
        )
        return [each.id for each in found]

    assert await listed(ended=False) == [second.id]
    assert await listed(ended=True) == [first.id, second.id]


async def test_a_new_key_does_not_put_off_what_is_due_for_others(tenancy: Tenancy) -> None:
    project = await tenancy.project()
    await tenancy.assign(await tenancy.plan(TPM, CONCURRENT))
    await tenancy.pool.execute("UPDATE tenant_limits SET next_change_at = now() - interval '1 second'")
    await tenancy.key(project)
    assert await tenancy.pool.fetchval("SELECT quota_resolve_due(10)") == 1
    assert await tenancy.due() is None


async def test_what_was_revoked_or_has_ended_is_history(tenancy: Tenancy) -> None:
    more = await tenancy.override(tenancy.tenant_id, each("tenant", "concurrent", "running", 80))
    await tenancy.revoke(more)
    await tenancy.assign(await tenancy.plan(CONCURRENT))
    await tenancy.assign(None)
    for rewritten in (
        "UPDATE limit_override SET revoked_at = NULL",
        "UPDATE plan_assignment SET effective_to = NULL",
    ):
        with pytest.raises(asyncpg.RestrictViolationError):
            await tenancy.pool.execute(rewritten)
    assert (await tenancy.revoke(more)).revoked_at is not None
    assert await tenancy.amounts() == {}
