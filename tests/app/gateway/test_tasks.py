"""Tasks: a bill and a budget for many requests, told by headers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.catalog.snapshot import Key, Tenant
from app.core import ids
from app.core.clock import ManualClock
from app.core.errors import DependencyError, Rejected, RejectReason
from app.core.ids import ProjectId
from app.core.money import PICOS_PER_UNIT, format_picos, parse_picos
from app.gateway.model import Principal
from app.gateway.task_store import PostgresTasks
from app.gateway.tasks import FRESH_S, NEW_TASKS, Named, Task, TaskDesk, named_in
from tests.app.gateway.house import House, chat, execute, open_house
from tests.app.gateway.limited import run
from tests.database import Database
from tests.field.stand import post_all

_CHAT = "/v1/chat/completions"
NAME, BUDGET = b"x-steelyard-task", b"x-steelyard-task-budget"


async def ask(
    house: House, task: str, budget: str | None = None, *, max_tokens: int = 8, **members: Any
) -> httpx.Response:
    headers = {"x-steelyard-task": task, **({} if budget is None else {"x-steelyard-task-budget": budget})}
    return await house.client.post(_CHAT, json=chat(max_tokens=max_tokens, **members), headers=headers)


async def test_an_agents_loop_stops_at_its_budget_to_the_pico(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        first = await ask(house, "probe", "0.000001")
        need = parse_picos(first.json()["error"]["needed"])
        answers = []
        budget = format_picos(need + 30_000_000)
        while not answers or answers[-1].status_code == 200:
            answers.append(await ask(house, "agent run 7", budget))
            await post_all(database, tmp_path)
        cost = sum(one.cost_picos for one in house.settled())
        error = answers[-1].json()["error"]
        (task,) = await run(database, "SELECT id, budget FROM task WHERE name = 'agent run 7'")
        assert (error["type"], error["code"]) == ("insufficient_quota", "budget_exhausted")
        assert error["scope"] == f"task {task['id']}"
        assert answers[-1].headers["x-should-retry"] == "false"
        assert parse_picos(error["available"]) == task["budget"] - cost < need
        assert len(answers) > 2
        bill = await run(database, "SELECT sum(cost) AS cost FROM usage_event WHERE task_id = $1", task["id"])
        assert bill[0]["cost"] == cost <= task["budget"]
        assert (await ask(house, "another")).status_code == 200


async def test_requests_at_once_never_pass_a_tasks_budget(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        refused = await ask(house, "probe", "0")
        need = parse_picos(refused.json()["error"]["needed"])
        budget = format_picos(3 * need)
        answers = await asyncio.gather(*(ask(house, "burst", budget) for _ in range(12)))
        assert {answer.status_code for answer in answers} <= {200, 429}
        (task,) = await run(database, "SELECT id, allowance_id FROM task WHERE name = 'burst'")
        of_task = [one for one in house.admitted() if one.task_id == task["id"]]
        spent = sum(house.settled_of(one.request_id).cost_picos for one in of_task)
        assert len(of_task) >= 3
        assert spent <= 3 * need
        assert all(task["allowance_id"] in [held.allowance_id for held in one.holds] for one in of_task)


async def test_a_task_without_a_budget_has_a_bill_alone(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        assert [(await ask(house, "free")).status_code for _ in range(2)] == [200, 200]
        assert (await ask(house, "free", "1")).status_code == 409
        await post_all(database, tmp_path)
        (row,) = await run(
            database,
            "SELECT t.budget, count(*) AS requests FROM task t JOIN usage_event e ON e.task_id = t.id"
            " GROUP BY 1",
        )
        assert (row["budget"], row["requests"]) == (None, 2)


async def test_another_budget_is_a_conflict_that_is_not_retried(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        assert (await ask(house, "run", "2.50")).status_code == 200
        assert (await ask(house, "run", "2.5")).status_code == 200
        assert (await ask(house, "run")).status_code == 200
        answer = await ask(house, "run", "3")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "task_invalid")
        assert (error["limit"], error["observed"]) == ("2.5", "3")
        assert answer.headers["x-should-retry"] == "false"
        raised = "UPDATE task SET budget = 9000000000000 WHERE name = 'run'"
        await execute(database, raised)
        async with asyncio.timeout(5):
            while (await ask(house, "run", "9")).status_code != 200:
                await asyncio.sleep(0.01)
        assert (await ask(house, "run", "2.50")).status_code == 200, "as it was declared"


async def test_a_closed_task_takes_no_more(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        assert (await ask(house, "run", "2.50")).status_code == 200
        await execute(database, "UPDATE task SET status = 'closed', closed_at = now()")
        async with asyncio.timeout(5):
            while (answer := await ask(house, "run", "2.50")).status_code == 200:
                await asyncio.sleep(0.01)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "task_closed")
        assert (await house.until_refused("task_closed")).facts is not None


async def test_names_are_those_of_a_project(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        other, secret = ids.project_id(), "sk-sy-" + "o" * 43
        await execute(
            database,
            "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'o')",
            other,
            house.seeded.tenant_id,
        )
        await execute(
            database,
            "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
            " VALUES ($1, $2, $3, 'o', sha256($4::text::bytea), 'sk-sy-oooo', 'oooo')",
            ids.key_id(),
            house.seeded.tenant_id,
            other,
            secret,
        )
        assert (await ask(house, "run", "2.50")).status_code == 200
        house.client.headers["authorization"] = f"Bearer {secret}"
        async with asyncio.timeout(5):
            while (answer := await ask(house, "run", "1")).status_code == 401:
                await asyncio.sleep(0.02)
        assert answer.status_code == 200
        names = await run(database, "SELECT project_id, name FROM task ORDER BY created_at")
        assert [row["project_id"] for row in names] == [house.seeded.project_id, other]


def test_no_header_is_no_task() -> None:
    assert named_in([(b"content-type", b"application/json")]) is None
    assert named_in([(NAME, b" run ")]) == Named("run", None)
    assert named_in([(BUDGET, b"0.000000000001"), (NAME, "läuft".encode())]) == Named("läuft", 1)


@pytest.mark.parametrize(
    "headers",
    [
        [(NAME, b"")],
        [(NAME, b"x" * 201)],
        [(NAME, b"a\x00b")],
        [(NAME, b"\xff\xfe")],
        [(BUDGET, b"2.50")],
        [(NAME, b"run"), (BUDGET, b"-1")],
        [(NAME, b"run"), (BUDGET, b"1e3")],
        [(NAME, b"run"), (BUDGET, b"0.0000000000001")],
        [(NAME, b"run"), (BUDGET, b"9999999999999999999999")],
        [(NAME, b"run"), (BUDGET, b"\xd9\xa1")],
        [(NAME, b"run"), (NAME, b"run")],
        [(BUDGET, b"1"), (NAME, b"run"), (BUDGET, b"2")],
    ],
)
def test_what_can_not_be_read_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Rejected) as raised:
        named_in(headers)
    assert (raised.value.reason, raised.value.status) == (RejectReason.TASK_INVALID, 400)


class FakeStore:
    """Answers when told to; `task` is what is there."""

    def __init__(self) -> None:
        self.task = Task(ids.task_id(), None, None, None, is_closed=False)
        self.opens = 0
        self.names: set[str] = set()
        self.may_answer = asyncio.Event()
        self.is_away = False

    async def open(self, principal: Principal, named: Named) -> tuple[Task, bool]:
        self.opens += 1
        task = self.task
        await self.may_answer.wait()
        if self.is_away:
            raise DependencyError("away")
        is_new = named.name not in self.names
        self.names.add(named.name)
        return task, is_new

    async def find(self, principal: Principal, named: Named) -> Task | None:
        return self.task if named.name in self.names else None


def principal(project_id: ProjectId | None = None) -> Principal:
    key = Key(
        ids.key_id(), ids.tenant_id(), project_id or ids.project_id(), b"", frozenset(), None, None, None
    )
    return Principal(key, Tenant(key.tenant_id, "active", "USD", None, ids.allowance_id()))


async def test_a_task_is_looked_up_once_however_many_come_at_once() -> None:
    store, who = FakeStore(), principal()
    desk = TaskDesk(store, clock=ManualClock())
    asked = [asyncio.ensure_future(desk.find([(NAME, b"run")], who)) for _ in range(5)]
    await asyncio.sleep(0)
    asked[0].cancel()
    store.may_answer.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [store.task] * 4
    assert await desk.find([(NAME, b"run")], who) == store.task
    assert store.opens == desk.opened == 1


async def test_what_changes_while_it_is_looked_up_is_looked_up_again() -> None:
    store, who = FakeStore(), principal()
    desk = TaskDesk(store, clock=ManualClock())
    asked = asyncio.ensure_future(desk.find([(NAME, b"run")], who))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.task = Task(store.task.task_id, None, None, None, is_closed=True)
    desk.notice(store.task.task_id)
    store.may_answer.set()
    assert await asked is not None
    with pytest.raises(Rejected) as raised:
        await desk.find([(NAME, b"run")], who)
    assert raised.value.reason is RejectReason.TASK_CLOSED


async def test_a_task_that_nothing_is_heard_of_is_looked_up_now_and_then() -> None:
    store, who, clock = FakeStore(), principal(), ManualClock()
    store.may_answer.set()
    desk = TaskDesk(store, clock=clock)
    for _ in range(3):
        await desk.find([(NAME, b"run")], who)
    clock.advance(FRESH_S + 1)
    await desk.find([(NAME, b"run")], who)
    assert store.opens == 2


async def test_a_new_task_waits_for_the_database_and_a_known_one_does_not() -> None:
    store, who = FakeStore(), principal()
    store.may_answer.set()
    desk = TaskDesk(store, clock=ManualClock())
    await desk.find([(NAME, b"known")], who)
    store.is_away = True
    assert await desk.find([(NAME, b"known")], who) == store.task
    with pytest.raises(Rejected) as raised:
        await desk.find([(NAME, b"new")], who)
    assert (raised.value.reason, raised.value.status) == (RejectReason.TASK_UNAVAILABLE, 503)
    assert raised.value.retry_after_s == 1.0


async def test_new_tasks_of_a_project_have_a_rate_and_those_that_it_has_do_not() -> None:
    store, clock = FakeStore(), ManualClock()
    store.may_answer.set()
    desk, who = TaskDesk(store, clock=clock), principal()
    names = [b"run %d" % number for number in range(NEW_TASKS.burst)]
    for name in names:
        await desk.find([(NAME, name)], who)
    with pytest.raises(Rejected) as raised:
        await desk.find([(NAME, b"one more")], who)
    assert (raised.value.reason, raised.value.status) == (RejectReason.TASK_UNAVAILABLE, 429)
    assert "one more" not in store.names
    assert await desk.find([(NAME, b"another project's")], principal()) == store.task
    clock.advance(FRESH_S + 1)
    for _ in range(3):  # each is looked up again, and that uses nothing of what came meanwhile
        for name in names:
            await desk.find([(NAME, name)], who)
        clock.advance(FRESH_S + 1)
    assert await desk.find([(NAME, b"one more")], who) == store.task


async def test_a_process_that_has_made_too_many_finds_those_of_others(
    database: Database, tmp_path: Path
) -> None:
    async with open_house(database, tmp_path) as house:
        assert (await ask(house, "mine", "2")).status_code == 200
        project_id, pool = (
            house.seeded.project_id,
            await asyncpg.create_pool(database.app_url, min_size=1, max_size=1),
        )
        try:
            store, who = PostgresTasks(pool), principal(ProjectId(project_id))
            found = await store.find(who, Named("mine", None))
            assert found is not None
            assert (found.budget, found.drawn is None) == (2 * PICOS_PER_UNIT, False)
            assert await store.open(who, Named("mine", None)) == (found, False)
            assert await store.find(who, Named("nobody's", None)) is None
        finally:
            await pool.close()


def test_a_budget_is_in_picos() -> None:
    assert named_in([(NAME, b"run"), (BUDGET, b"2.50")]) == Named("run", 5 * PICOS_PER_UNIT // 2)
