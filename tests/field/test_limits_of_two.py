"""Limits of one and one over, at two gateway processes at once: exact, whoever is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.money import parse_picos
from tests.app.gateway.house import chat
from tests.app.gateway.limited import Before, limit
from tests.database import Database
from tests.field.pair import Pair, open_pair, until
from tests.field.replay import counts, whole
from tests.field.stand import listening, rows

_ASKED = 24


async def ask_all(pair: Pair, body: dict[str, Any], **headers: str) -> list[Any]:
    """Half of the requests to each process, all at once."""
    return list(await asyncio.gather(*(pair.ask(n % 2, body, **headers) for n in range(_ASKED))))


def codes(answers: list[Any]) -> Counter[str]:
    return Counter(
        "served" if answer.status_code == 200 else answer.json()["error"]["code"] for answer in answers
    )


async def until_both_know(pair: Pair, ceiling: int) -> None:
    """Wait until both processes refuse a request by this ceiling of its output."""

    async def refused() -> bool:
        huge = chat(max_tokens=1024)
        answers = [await pair.ask(which, huge) for which in range(2)]
        return all(
            answer.status_code == 400 and answer.json()["error"]["limit"] == str(ceiling)
            for answer in answers
        )

    await until(refused)


async def limited(pair: Pair, database: Database, *limits: Before) -> None:
    """Set limits; the last one tells when both processes have heard of all of them.

    A ceiling stands before, so that no request that asks whether they have uses anything.
    """
    await limit("max_output", "request", 1000)(database, pair.seeded)
    await until_both_know(pair, 1000)
    for each in (*limits, limit("max_output", "request", 900)):
        await each(database, pair.seeded)
    await until_both_know(pair, 900)


async def test_one_request_a_minute_is_one_at_all_processes(database: Database, tmp_path: Path) -> None:
    async with open_pair(database, tmp_path, balance=10**13) as pair:
        await limited(pair, database, limit("requests", "minute", 1))
        answers = await ask_all(pair, chat())
        assert codes(answers) == {"served": 1, "requests_per_minute": _ASKED - 1}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert 0 < refused.json()["error"]["retry_after_s"] <= 60


@pytest.mark.parametrize(("over", "served"), [(0, 3), (-1, 2)])
async def test_a_days_tokens_cover_what_they_cover_and_not_one_token_more(
    database: Database, tmp_path: Path, over: int, served: int
) -> None:
    """Each holds 8 output tokens and uses them all, so the limit is met, or missed, by one token."""
    async with open_pair(database, tmp_path, balance=10**13) as pair:
        await limited(pair, database, limit("output_tokens", "day", 3 * 8 + over))
        answers = await ask_all(pair, chat(max_tokens=8))
        assert codes(answers) == {"served": served, "budget_exhausted": _ASKED - served}


async def test_as_many_run_at_all_processes_together_as_may(database: Database, tmp_path: Path) -> None:
    async with (
        listening() as engine,
        open_pair(database, tmp_path, balance=10**13, engine_url=engine.base_url) as pair,
    ):
        engine.scripts["slow"] = replace(whole("done", counts(10, 8)), waits=True)
        await limited(pair, database, limit("concurrent", "running", 3))
        asked = [asyncio.create_task(pair.ask(n % 2, chat("script:slow"))) for n in range(_ASKED)]

        async def all_are_running_or_refused() -> bool:
            return engine.waiting + sum(task.done() for task in asked) == _ASKED

        await until(all_are_running_or_refused, within_s=60)
        assert engine.waiting == 3
        engine.released.set()
        answers = await asyncio.gather(*asked)
        assert codes(answers) == {"served": 3, "too_many_concurrent": _ASKED - 3}
        again = await pair.ask(0, chat("script:slow"))
        assert again.status_code == 200, "what has ended no longer runs"


async def test_an_agents_loop_at_two_processes_stops_at_its_budget(
    database: Database, tmp_path: Path
) -> None:
    async with open_pair(database, tmp_path, balance=10**13) as pair:
        probe = await pair.ask(0, chat(), **{"x-steelyard-task": "p", "x-steelyard-task-budget": "0"})
        need = parse_picos(probe.json()["error"]["needed"])
        headers = {"x-steelyard-task": "run", "x-steelyard-task-budget": "0.002"}
        which, last = 0, 200
        while last == 200:
            answers = [await pair.ask((which + n) % 2, chat(), **headers) for n in range(2)]
            last = max(answer.status_code for answer in answers)
        assert last == 429

        async def posted() -> bool:
            (row,) = await rows(database, _OUT)
            return bool(row["out"] == 0)

        await until(posted)
        (task,) = await rows(database, "SELECT id, budget, allowance_id FROM task WHERE name = 'run'")
        (bill,) = await rows(
            database,
            "SELECT sum(cost) AS cost, count(*) AS n FROM usage_event WHERE task_id = $1",
            task["id"],
        )
        (allowance,) = await rows(
            database, "SELECT limit_amount, spent FROM allowance WHERE id = $1", task["allowance_id"]
        )
        assert bill["cost"] == allowance["spent"] <= task["budget"] == 2 * 10**9
        assert task["budget"] - bill["cost"] < need, "and not before it"


_OUT = """
SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) AS out
FROM lease l JOIN allowance a ON a.id = l.allowance_id WHERE a.scope_kind = 'task'
"""
