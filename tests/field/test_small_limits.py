"""A task's budget at two processes: exact to the last pico."""

from __future__ import annotations

from pathlib import Path

import httpx

from app.core.money import format_picos, parse_picos
from tests.app.gateway.house import chat
from tests.database import Database
from tests.field.pair import open_pair, until
from tests.field.stand import rows

_PLENTY = 10**15


async def test_a_task_ends_at_its_budget_to_the_pico_whichever_process_it_asks(
    database: Database, tmp_path: Path
) -> None:
    async with open_pair(database, tmp_path, balance=_PLENTY) as pair:

        async def call(which: int, task: str, budget: int) -> httpx.Response:
            headers = {
                "authorization": f"Bearer {pair.seeded.secret}",
                "x-steelyard-task": task,
                "x-steelyard-task-budget": format_picos(budget),
            }
            return await pair.client.post(pair.urls[which], json=chat(), headers=headers)

        async def loop(task: str, budget: int) -> tuple[int, int]:
            """How many calls were served and what they cost, once all are posted."""
            served = 0
            while (answer := await call(served % 2, task, budget)).status_code == 200:
                served += 1
            assert answer.json()["error"]["code"] == "budget_exhausted"
            return served, await _posted(database, task, served)

        refused = await call(0, "probe", 1)
        needed = parse_picos(refused.json()["error"]["needed"])
        assert (await call(0, "price", _PLENTY)).status_code == 200
        cost = await _posted(database, "price", 1)
        exact = 3 * cost + needed
        assert await loop("exact", exact) == (4, 4 * cost)
        assert await loop("one pico less", exact - 1) == (3, 3 * cost)


async def _posted(database: Database, task: str, events: int) -> int:
    """What a task's events cost, once there are so many."""
    query = (
        "SELECT count(e.request_id) AS n, coalesce(sum(e.cost), 0) AS cost FROM task t"
        f" LEFT JOIN usage_event e ON e.task_id = t.id WHERE t.name = '{task}'"
    )

    async def all_posted() -> bool:
        [found] = await rows(database, query)
        return bool(found["n"] == events)

    await until(all_posted)
    [found] = await rows(database, query)
    return int(found["cost"])
