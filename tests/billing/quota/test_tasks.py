"""Tasks: made once by whoever names them first, closed, and given other budgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.database import connect_engine
from app.core.errors import Conflict, Rejected
from app.core.ids import ProjectId, TenantId
from billing.quota import authority, tasks
from billing.quota.tables import allowance
from tests.database import Database

NOW = datetime(2026, 12, 1, tzinfo=UTC)
_OPEN = "SELECT * FROM quota_open_task($1, $2, $3, $4, $5, $6, $7)"


@dataclass
class Office:
    """A tenant with a project; `pool` and `engine` are those of running processes."""

    pool: asyncpg.Pool
    engine: AsyncEngine
    tenant_id: TenantId
    project_id: ProjectId

    async def open(self, name: str, budget: int | None = None) -> asyncpg.Record:
        """What a gateway gets that hears of a task."""
        row = await self.pool.fetchrow(
            _OPEN, ids.task_id(), self.tenant_id, self.project_id, "key_1", name, budget, ids.allowance_id()
        )
        assert row is not None
        return row


@pytest_asyncio.fixture
async def office(database: Database) -> AsyncIterator[Office]:
    pool = await asyncpg.create_pool(database.app_url, min_size=1, max_size=8)
    engine = connect_engine(database.app_url)
    opened = Office(pool, engine, ids.tenant_id(), ids.project_id())
    try:
        await pool.execute(
            "INSERT INTO tenant (id, name, currency) VALUES ($1, 'Acme', 'EUR')", opened.tenant_id
        )
        await pool.execute(
            "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'p')",
            opened.project_id,
            opened.tenant_id,
        )
        yield opened
    finally:
        await engine.dispose()
        await pool.close()


async def test_all_who_name_a_task_at_once_get_the_same_one(office: Office) -> None:
    rows = await asyncio.gather(*(office.open("run", 1000 + n) for n in range(12)))
    assert len(set(rows)) == 1
    (row,) = set(rows)
    assert row["budget"] == row["declared"]
    assert await office.pool.fetchval("SELECT count(*) FROM allowance") == 1
    limit = await office.pool.fetchval(
        "SELECT limit_amount FROM allowance WHERE id = $1", row["allowance_id"]
    )
    assert str(limit) == row["budget"]


async def test_a_budget_is_told_by_the_first_request_or_not_at_all(office: Office) -> None:
    first = await office.open("free")
    assert (first["budget"], first["allowance_id"]) == (None, None)
    assert await office.open("free", 7) == first


async def test_a_task_is_closed_once_and_says_so(office: Office) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    row = await office.open("run", 1000)
    async with office.pool.acquire() as connection:

        def listen(*told: object) -> None:
            heard.put_nowait(str(told[-1]))

        await connection.add_listener("steelyard_changes", listen)
        for _ in range(2):
            async with office.engine.begin() as session:
                closed = await tasks.set_status(session, row["id"], closed=True, now=NOW)
        async with asyncio.timeout(5):
            assert await heard.get() == f"task:{row['id']}"
        assert heard.empty(), "closing it again changes nothing"
        await connection.remove_listener("steelyard_changes", listen)
    assert (closed.status, closed.closed_at is not None) == ("closed", True)
    assert (await office.open("run", 1000))["status"] == "closed"


async def test_another_budget_moves_the_limit_by_as_much(office: Office) -> None:
    row = await office.open("run", 1000)
    for budget in (2500, 0, 700):
        async with office.engine.begin() as session:
            changed = await tasks.set_budget(session, row["id"], budget=budget, cost=0)
            status = await authority.status(session, row["allowance_id"])
        assert (changed.budget, changed.declared, status.limit) == (budget, 1000, budget)


async def test_a_budget_that_comes_late_counts_what_was_spent_before(office: Office) -> None:
    row = await office.open("run")
    async with office.engine.begin() as session:
        first = await tasks.set_budget(session, row["id"], budget=1000, cost=300)
        assert first.allowance_id is not None
        assert (await authority.status(session, first.allowance_id)).limit == 700
        raised = await tasks.set_budget(session, row["id"], budget=1200, cost=10**9)
        assert (raised.budget, raised.spent_before) == (1200, 300), "what its allowance counts, it counts"
        assert (await authority.status(session, first.allowance_id)).limit == 900
    assert (await office.open("run"))["allowance_id"] == first.allowance_id


async def test_a_budget_that_is_taken_away_and_given_again_counts_all(office: Office) -> None:
    row = await office.open("run", 1000)
    async with office.engine.begin() as session:
        await session.execute(update(allowance).values(spent=400))
        none = await tasks.set_budget(session, row["id"], budget=None, cost=400)
        assert (none.budget, none.allowance_id) == (None, None)
        again = await tasks.set_budget(session, row["id"], budget=2000, cost=900)
        assert (again.allowance_id, again.spent_before) == (row["allowance_id"], 500)
        assert (await authority.status(session, row["allowance_id"])).available == 2000 - 900


async def test_what_is_settled_while_a_budget_is_given_again_is_never_lent_once_more(office: Office) -> None:
    row = await office.open("run", 1000)
    async with office.engine.begin() as session:
        await tasks.set_budget(session, row["id"], budget=None, cost=0)
        await session.execute(update(allowance).values(spent=400))  # since the cost was read
        again = await tasks.set_budget(session, row["id"], budget=2000, cost=0)
        assert again.spent_before == 0
        assert (await authority.status(session, row["allowance_id"])).available == 2000 - 400


async def test_a_task_that_the_api_makes_is_the_one_that_requests_name(office: Office) -> None:
    named = {"tenant_id": office.tenant_id, "project_id": office.project_id, "name": "run"}
    async with office.engine.begin() as session:
        made = await tasks.create_task(session, **named, budget=1000)
        with pytest.raises(Conflict):
            await tasks.create_task(session, **named, budget=None)
    row = await office.open("run", 1000)
    assert (row["id"], row["allowance_id"], row["budget"]) == (made.id, made.allowance_id, "1000")
    assert (made.declared, made.created_by_key) == (None, None)


async def test_a_closed_task_can_be_opened_again(office: Office) -> None:
    row = await office.open("run")
    async with office.engine.begin() as session:
        await tasks.set_status(session, row["id"], closed=True, now=NOW)
        opened = await tasks.set_status(session, row["id"], closed=False, now=NOW)
    assert (opened.status, opened.closed_at) == ("open", None)


async def test_tasks_are_listed_newest_first_and_are_nobody_elses(office: Office) -> None:
    made = [(await office.open(f"run {number}"))["id"] for number in range(3)]
    async with office.engine.begin() as session:
        await tasks.set_status(session, made[0], closed=True, now=NOW)
        listed = await tasks.list_tasks(session, tenant_id=office.tenant_id, limit=2)
        rest = await tasks.list_tasks(session, tenant_id=office.tenant_id, before=listed[-1].id, limit=2)
        still = await tasks.list_tasks(session, tenant_id=office.tenant_id, status="open", limit=9)
        assert [each.id for each in (*listed, *rest)] == made[::-1]
        assert [each.id for each in still] == made[:0:-1]
        assert await tasks.list_tasks(session, tenant_id=ids.tenant_id(), limit=9) == []
        with pytest.raises(Rejected):
            await tasks.get_task(session, "tsk_none")
