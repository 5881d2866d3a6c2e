"""Allowances on a real authority: what is lent counts, each threshold is told once, and nothing is missed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from app.core.errors import Rejected
from billing.alerts import endpoints, rules, watch
from billing.alerts.model import MarkKind
from tests.billing.alerts.tower import Tower


async def test_what_is_lent_counts_before_anything_is_spent(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    gateway = await tower.desk.incarnation()
    await tower.lend(gateway, wallet, 499)
    await tower.look()
    assert await tower.alerts() == []
    await tower.lend(gateway, wallet, 1)
    await tower.look()
    (alert,) = await tower.alerts()
    assert (alert.threshold, alert.spent, alert.outstanding, alert.limit_amount) == (50, 0, 500, 1000)
    assert (alert.scope_name, alert.currency, alert.at) == ("Acme", "EUR", tower.now)


async def test_several_thresholds_passed_in_one_step_are_all_told(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    await tower.lend(await tower.desk.incarnation(), wallet, 1000)
    assert await tower.look() == 3
    assert await tower.told(wallet) == [50, 80, 100]


async def test_leases_that_come_and_go_tell_nothing_twice(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    gateway = await tower.desk.incarnation()
    for turn in range(1, 4):
        await tower.lend(gateway, wallet, 600)
        await tower.look()
        await tower.give_back(gateway, wallet, 600 * turn)
        await tower.look()
    assert await tower.told(wallet) == [50]


async def test_spending_what_was_lent_leaves_no_mark(tower: Tower) -> None:
    """What is used does not change by it; away from a level a grant leaves none either."""
    wallet = await tower.allowance(1000)
    gateway = await tower.desk.incarnation()
    await tower.lend(gateway, wallet, 100)
    assert await tower.due() == [wallet]  # never looked at
    await tower.look()
    await tower.lend(gateway, wallet, 100)
    await tower.desk.post(gateway, (wallet, 150, 150))
    assert await tower.due() == []
    await tower.lend(gateway, wallet, 300)
    assert await tower.due() == [wallet]


async def test_use_that_no_lease_covered_is_told(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    gateway = await tower.desk.incarnation()
    await tower.lend(gateway, wallet, 400)
    await tower.look()
    await tower.desk.post(gateway, (wallet, 400, 700))
    await tower.look()
    assert await tower.told(wallet) == [50]


async def test_a_lowered_limit_is_told_and_a_raised_one_arms_anew(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    gateway = await tower.desk.incarnation()
    await tower.lend(gateway, wallet, 400)
    await tower.look()
    await tower.set_limit(wallet, 500)
    await tower.look()
    assert await tower.told(wallet) == [50, 80]
    await tower.set_limit(wallet, 1000)
    assert await tower.look() == 0
    await tower.lend(gateway, wallet, 100)
    await tower.look()
    assert await tower.told(wallet) == [50, 80, 50]
    rearmed = [alert.rearmed_at is not None for alert in await tower.alerts()]
    assert rearmed == [True, True, False]


async def test_each_period_tells_anew_and_names_itself(tower: Tower) -> None:
    start = tower.now
    for day in range(2):
        period = {"period_start": start + timedelta(days=day), "period_end": start + timedelta(days=day + 1)}
        budget = await tower.allowance(
            10, what="requests", window_kind="day", limit_source="plan:p", **period
        )
        await tower.lend(await tower.desk.incarnation(), budget, 5)
        await tower.look()
        (alert,) = await tower.alerts(budget)
        assert (alert.period_start, alert.period_end) == (period["period_start"], period["period_end"])
        assert (alert.currency, alert.what) == (None, "requests")


async def test_a_task_is_told_of_by_its_name(tower: Tower) -> None:
    project, task = "prj_" + "1" * 32, "tsk_" + "1" * 32
    pool = tower.desk.pool
    await pool.execute(
        "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'search')", project, tower.desk.tenant
    )
    await pool.execute(
        "INSERT INTO task (id, tenant_id, project_id, name) VALUES ($1, $2, $3, 'nightly')",
        task,
        tower.desk.tenant,
        project,
    )
    budget = await tower.allowance(10, scope_kind="task", scope_id=task)
    await tower.lend(await tower.desk.incarnation(), budget, 10)
    await tower.look()
    assert {alert.scope_name for alert in await tower.alerts(budget)} == {"nightly"}


@pytest.mark.parametrize("limit", [0, -5])
async def test_a_wallet_with_nothing_in_it_says_nothing(tower: Tower, limit: int) -> None:
    wallet = await tower.allowance(10)
    await tower.set_limit(wallet, limit)
    assert await tower.look() == 0


async def test_two_lookers_at_once_tell_once(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    await tower.endpoint()
    await tower.lend(await tower.desk.incarnation(), wallet, 900)

    async def look() -> int:
        async with tower.engine.begin() as connection:
            return await watch.look(connection, [wallet], now=tower.now)

    counts = await asyncio.gather(*(look() for _ in range(6)))
    assert sorted(counts) == [0, 0, 0, 0, 0, 2]
    assert await tower.told(wallet) == [50, 80]
    assert len(await tower.deliveries()) == 2


async def test_a_grant_beside_a_look_is_never_lost(tower: Tower) -> None:
    """The looker waits for the grant, or the grant for the looker and marks anew."""
    wallet = await tower.allowance(100)
    gateway = await tower.desk.incarnation()

    async def grant() -> None:
        for _ in range(100):
            await tower.lend(gateway, wallet, 1)

    granting = asyncio.create_task(grant())
    while not granting.done():
        await tower.look()
    await granting
    await tower.look()
    assert await tower.told(wallet) == [50, 80, 100]
    thresholds = [alert.outstanding - alert.threshold for alert in await tower.alerts(wallet)]
    assert all(late >= 0 for late in thresholds)


async def test_an_alert_goes_to_the_active_endpoints_of_its_own_tenant(tower: Tower) -> None:
    mine, disabled = await tower.endpoint(), await tower.endpoint("https://hooks.example/b")
    theirs = await tower.endpoint(tenant=await tower.tenant())
    async with tower.engine.begin() as connection:
        await endpoints.change_endpoint(
            connection, disabled.id, changes={"status": "disabled"}, now=tower.now
        )
    wallet = await tower.allowance(10)
    await tower.lend(await tower.desk.incarnation(), wallet, 5)
    await tower.look()
    assert [each.endpoint_id for each in await tower.deliveries()] == [mine.id]
    assert theirs.id != mine.id


async def test_a_change_of_rules_is_followed_for_what_is_used_already(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    await tower.lend(await tower.desk.incarnation(), wallet, 300)
    await tower.look()
    rule = await tower.rule([20, 90], remaining=750)
    assert await tower.look() == 2
    kinds = [(alert.kind, alert.threshold) for alert in await tower.alerts(wallet)]
    assert kinds == [(MarkKind.PERCENT, 20), (MarkKind.REMAINING, 750)]
    async with tower.engine.begin() as connection:
        await rules.change_rule(connection, rule.id, changes={"percents": [30]})
    assert await tower.look() == 1
    async with tower.engine.begin() as connection:
        await rules.remove_rule(connection, rule)
    assert await tower.look() == 0


async def test_a_sweep_goes_through_more_than_one_step(tower: Tower) -> None:
    gateway = await tower.desk.incarnation()
    for number in range(watch.BATCH + 5):
        each = await tower.allowance(10, scope_kind="task", scope_id=f"tsk_{number}")
        await tower.lend(gateway, each, 3)
    assert await tower.look() == 0
    await tower.rule([30], scope_kind="task")
    assert await tower.look() == watch.BATCH + 5


async def test_a_rule_is_for_a_scope_of_its_own_tenant(tower: Tower) -> None:
    for kind in ("project", "key", "task", "tenant"):
        with pytest.raises(Rejected):
            await tower.rule([10], scope_kind=kind, scope_id="prj_elsewhere")


async def test_what_changed_without_a_mark_is_found_when_all_is_looked_over(tower: Tower) -> None:
    wallet = await tower.allowance(1000)
    await tower.lend(await tower.desk.incarnation(), wallet, 10)
    await tower.look()

    async def missed() -> list[str]:
        async with tower.engine.begin() as connection:
            return list(await watch.find_missed(connection, now=tower.now))

    assert await missed() == []
    async with tower.engine.begin() as connection:
        await connection.execute(text("UPDATE allowance SET spent = 790"))
    assert await tower.due() == []
    assert await missed() == [wallet]
    async with tower.engine.begin() as connection:
        assert await watch.look(connection, [wallet], now=tower.now) == 2
    assert await missed() == []
