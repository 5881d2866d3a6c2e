"""Budgets beside the wallet: spent by the same events, rebuilt from them, and proven against the leases."""

from __future__ import annotations

import pytest_asyncio
from msgspec import structs
from sqlalchemy import text

from app.core import ids
from app.core.clock import from_ms
from app.core.ids import AllowanceId, RequestId
from billing.journal.facts import Facts
from billing.journal.join import Charge
from billing.journal.model import Held, Used, encode
from billing.journal.posting import post_charges
from billing.ledger import rebuild
from billing.ledger.rebuild import Difference
from billing.metering.uses import used_of
from billing.quota import limits, tasks
from billing.reconcile.model import Pair
from tests.billing.journal.shop import Shop, settled
from tests.billing.quota.tenancy import each
from tests.billing.reconcile.posted import gaps

LIMITS = (
    each("tenant", "picos", "month", 10**15),
    each("tenant", "tokens", "week", 10**6),
    each("tenant", "requests", "day", 100),
    each("tenant", "concurrent", "running", 8),
    each("tenant", "requests", "minute", 60),
)
_STANDING = "SELECT (id, limit_amount, spent, limit_source, ended_at)::text FROM allowance ORDER BY id"


@pytest_asyncio.fixture
async def limited(shop: Shop) -> Shop:
    """A shop whose tenant has a limit of each kind."""
    for limit in LIMITS:
        async with shop.engine.begin() as connection:
            await limits.override(
                connection,
                tenant_id=shop.catalogue.tenant_id,
                scope_id=shop.catalogue.tenant_id,
                subject=limit.subject,
                amount=limit.amount,
                reason="a test",
                by="test",
            )
    return shop


async def buy(shop: Shop) -> RequestId:
    """Settle one request that held of the wallet and of each limit that is settled by its record."""
    now = "coalesce(period_start, '-infinity') <= now() AND coalesce(period_end, 'infinity') > now()"
    rows = f"SELECT id || ' ' || what FROM allowance WHERE window_kind <> 'minute' AND {now}"
    admitted = shop.catalogue.admitted()
    bounds = {"picos": admitted.holds[0].amount, "tokens": 1500, "requests": 1, "concurrent": 1}
    named = [str(row).split() for row in await shop.rows(rows)]
    holds = tuple(Held(AllowanceId(an_id), bounds[what], what) for an_id, what in sorted(named))
    admitted = structs.replace(admitted, holds=holds)
    ended = settled(admitted)
    used = tuple(
        Used(
            held.allowance_id,
            held.amount,
            used_of(held.what, ended.billed, cost_picos=ended.cost_picos),
            held.what,
        )
        for held in holds
    )
    ended = structs.replace(ended, used=used)
    borrower = await shop.incarnation(lent=bounds["picos"])
    charge = Charge(0, 0, admitted, ended, encode(admitted), encode(ended))
    facts = Facts()
    async with shop.engine.begin() as connection:
        for held in holds:
            await connection.execute(
                text(
                    "INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES (:id, :by, :lent)"
                    " ON CONFLICT DO NOTHING"
                ),
                {"id": held.allowance_id, "by": borrower, "lent": held.amount},
            )
        await facts.load(connection, [charge])
        assert facts.flaw(charge) is None
        now_at = from_ms(shop.clock.now_ms())
        await post_charges(connection, [charge], incarnation_id=borrower, facts=facts, now=now_at)
    return admitted.request_id


async def compared(shop: Shop) -> list[Difference]:
    async with shop.engine.begin() as connection:
        return await rebuild.compare(connection)


async def test_each_budget_is_spent_by_what_it_counts(limited: Shop) -> None:
    await buy(limited)
    await buy(limited)
    spent = await limited.rows(
        "SELECT what || ' ' || window_kind || ' ' || spent FROM allowance WHERE limit_source IS NOT NULL"
        " AND coalesce(period_start, '-infinity') <= now() ORDER BY 1"
    )
    (cost,) = await limited.rows("SELECT sum(cost)::text FROM usage_event")
    assert spent == [
        "concurrent running 0",
        f"picos month {cost}",
        "requests day 2",
        "requests minute 0",
        "tokens week 1980",
    ]


async def test_budgets_are_rebuilt_from_events_and_limits_from_what_they_follow_from(limited: Shop) -> None:
    await buy(limited)
    assert await compared(limited) == []
    before = await limited.rows(_STANDING)
    async with limited.owner.begin() as connection:
        await connection.execute(
            text("UPDATE allowance SET limit_amount = 7, spent = 3 WHERE window_kind <> 'minute'")
        )
        await connection.execute(text("UPDATE allowance SET ended_at = now() WHERE what = 'concurrent'"))
    found = {(each.what, each.stands) for each in await compared(limited)}
    assert found >= {("limit", 7), ("spent", 3), ("limit", 0)}
    async with limited.engine.begin() as connection:
        await rebuild.rebuild_allowances(connection)
    assert await limited.rows(_STANDING) == before
    assert await compared(limited) == []


async def test_a_tasks_budget_below_what_it_had_cost_before_is_rebuilt_as_it_is(limited: Shop) -> None:
    tenant_id, project_id = limited.catalogue.tenant_id, ids.project_id()
    async with limited.engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO project (id, tenant_id, name) VALUES (:id, :tenant, 'p')"),
            {"id": project_id, "tenant": tenant_id},
        )
        named = {"tenant_id": tenant_id, "project_id": project_id, "name": "run"}
        made = await tasks.create_task(connection, **named, budget=None)
        await tasks.set_budget(connection, made.id, budget=10, cost=7)
        await tasks.set_budget(connection, made.id, budget=2, cost=7)
    assert await compared(limited) == []
    async with limited.engine.begin() as connection:
        await rebuild.rebuild_allowances(connection)
    assert await compared(limited) == []


async def test_leases_and_allowances_of_each_kind_agree(limited: Shop) -> None:
    await buy(limited)
    rate = "SELECT id FROM allowance WHERE window_kind = 'minute'"
    async with limited.owner.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO lease (allowance_id, incarnation_id, granted, settled, epoch, heard_at)"
                f" SELECT ({rate}), id, 9, 4, 1, now() FROM incarnation"
            )
        )
    assert await gaps(limited, Pair.LEASES_ALLOWANCES) == []
    async with limited.owner.begin() as connection:  # a lease of a rate ends by time, whoever had it
        await connection.execute(text("UPDATE incarnation SET status = 'closed', closed_at = now()"))
    found = await gaps(limited, Pair.LEASES_ALLOWANCES)
    assert ("lent_to_the_dead", 5) not in {(gap.kind, gap.left) for gap in found}
    async with limited.owner.begin() as connection:
        await connection.execute(text("UPDATE allowance SET spent = spent + 1 WHERE window_kind = 'week'"))
        await connection.execute(
            text("UPDATE allowance SET spent = spent + 1 WHERE window_kind = 'day' AND spent > 0")
        )
    differing = {(gap.unit, gap.kind, gap.right) for gap in await gaps(limited, Pair.LEASES_ALLOWANCES)}
    assert ("tokens", "spent_differs", 991) in differing
    assert ("records", "spent_differs", 2) in differing
