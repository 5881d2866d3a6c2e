"""The smallest limits, at two processes at once: exact to the last request and pico."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx

from app.core.money import format_picos, parse_picos
from tests.app.gateway.house import chat
from tests.app.gateway.limited import limit
from tests.database import Database
from tests.field.pair import Pair, open_pair, until
from tests.field.stand import rows

_PLENTY = 10**15
_SHORT = 4


def _count(answers: list[httpx.Response]) -> Counter[str]:
    return Counter("200" if one.status_code == 200 else one.json()["error"]["code"] for one in answers)


async def _in_force(pair: Pair, database: Database) -> None:
    """Wait until both know all limits set so far: the last one refuses what is asked, and takes nothing."""
    await limit("max_output", "request", _SHORT)(database, pair.seeded)
    for which in range(2):

        async def refuses(which: int = which) -> bool:
            answer = await pair.ask(which, chat(max_tokens=_SHORT + 1))
            return answer.status_code == 400 and answer.json()["error"]["code"] == "output_limit"

        await until(refuses)


async def test_one_request_a_minute_is_one_of_twenty_at_both(database: Database, tmp_path: Path) -> None:
    async with open_pair(database, tmp_path, balance=_PLENTY) as pair:
        await limit("requests", "minute", 1)(database, pair.seeded)
        await _in_force(pair, database)
        body = chat(max_tokens=_SHORT)
        answers = await asyncio.gather(*(pair.ask(n % 2, body) for n in range(20)))
        assert _count(answers) == {"200": 1, "requests_per_minute": 19}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert 0 < refused.json()["error"]["retry_after_s"] <= 60


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
