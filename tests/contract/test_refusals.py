"""Each refusal by a limit, as a user of the official `openai` SDK meets it: its class, words and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from scheduler.simulator.model import Options
from tests.app.gateway.house import MODEL, SERVED, House, execute, open_house
from tests.app.gateway.limited import Before, all_of, clamping, limit
from tests.database import Database

_MESSAGES: Any = [{"role": "user", "content": "Say hi"}]


@asynccontextmanager
async def client_of(house: House, *, retries: int = 0, **headers: str) -> AsyncIterator[AsyncOpenAI]:
    url = f"http://127.0.0.1:{house.port}/v1"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with AsyncOpenAI(
        base_url=url, api_key=house.seeded.secret, max_retries=retries, default_headers=named
    ) as client:
        yield client


async def ask(client: AsyncOpenAI, **members: Any) -> Any:
    asked: Any = {"model": MODEL, "messages": _MESSAGES, "max_tokens": 8, **members}
    return await client.chat.completions.create(**asked)


async def loop(client: AsyncOpenAI) -> None:
    """Ask again and again, as an agent does, until that raises."""
    async with asyncio.timeout(20):
        while True:
            await ask(client)


@pytest.mark.parametrize(
    ("limits", "served", "code", "says"),
    [
        (limit("requests", "minute", 1), 1, "requests_per_minute", "1 requests per minute for tenant ten_"),
        (limit("tokens", "minute", 100), 0, "tokens_per_minute", "100 tokens per minute for tenant ten_"),
        (
            limit("input_tokens", "minute", 9, of="project"),
            0,
            "tokens_per_minute",
            "9 input tokens per minute for project prj_",
        ),
        (
            limit("output_tokens", "minute", 9, of="key", model=True),
            1,
            "tokens_per_minute",
            "9 output tokens per minute for key key_",
        ),
        (limit("concurrent", "running", 0), 0, "too_many_concurrent", "as may at once: 0 for tenant ten_"),
    ],
    ids=["requests", "tokens", "input", "output", "concurrent"],
)
async def test_a_rate_is_a_rate_limit_error(
    database: Database, tmp_path: Path, limits: Before, served: int, code: str, says: str
) -> None:
    async with open_house(database, tmp_path, before=limits) as house, client_of(house) as client:
        for _ in range(served):
            await ask(client)
        with pytest.raises(openai.RateLimitError) as raised:
            await ask(client)
    assert (raised.value.status_code, raised.value.type, raised.value.code) == (
        429,
        "rate_limit_exceeded",
        code,
    )
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (limit("picos", "month", 10**6), "0.000001 USD a month for tenant ten_"),
        (limit("requests", "day", 0, of="key"), "0 requests a day for key key_"),
        (limit("tokens", "week", 5, of="project"), "5 tokens a week for project prj_"),
    ],
    ids=["money", "requests", "tokens"],
)
async def test_a_budget_is_a_rate_limit_error_that_is_not_retried(
    database: Database, tmp_path: Path, limits: Before, says: str
) -> None:
    async with (
        open_house(database, tmp_path, before=limits) as house,
        client_of(house, retries=3) as client,
    ):
        with pytest.raises(openai.RateLimitError) as raised:
            await ask(client)
        await house.until_refused("budget_exhausted")
        assert len(house.refused()) == 1, "tried once"
    assert (raised.value.type, raised.value.code) == ("insufficient_quota", "budget_exhausted")
    assert says in raised.value.message
    body: Any = raised.value.body
    assert body["resets_at"].endswith("Z")


async def test_the_sdk_waits_for_a_rate_and_is_served(database: Database, tmp_path: Path) -> None:
    """600 a minute with no burst: the second waits its tenth of a second."""
    limits = limit("requests", "minute", 600, burst=1)
    async with (
        open_house(database, tmp_path, before=limits) as house,
        client_of(house, retries=3) as client,
    ):
        answers = await asyncio.gather(ask(client), ask(client))
        assert all(answer.choices[0].message.content for answer in answers)
        assert len(house.admitted()) == 2
        assert [one.reason for one in house.refused()] in ([], ["requests_per_minute"])


async def test_running_requests_are_waited_for(database: Database, tmp_path: Path) -> None:
    options = Options(model=SERVED, chunk_ms=30)
    limits = limit("concurrent", "running", 1)
    async with (
        open_house(database, tmp_path, before=limits, options=options) as house,
        client_of(house, retries=5) as client,
    ):
        answers = await asyncio.gather(ask(client), ask(client))
        assert len([answer for answer in answers if answer.choices]) == 2
        assert "too_many_concurrent" in {one.reason for one in house.refused()}


async def test_a_ceiling_is_a_bad_request(database: Database, tmp_path: Path) -> None:
    limits = all_of(limit("max_output", "request", 10), limit("max_context", "request", 2000))
    async with open_house(database, tmp_path, before=limits) as house, client_of(house) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, max_tokens=11)
        assert (raised.value.code, raised.value.param) == ("output_limit", "max_tokens")
        assert "At most 10 output tokens" in raised.value.message
        long: Any = [{"role": "user", "content": "word " * 1000}]
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, messages=long)
        assert raised.value.code == "context_too_long"


async def test_a_tasks_budget_ends_the_loop(database: Database, tmp_path: Path) -> None:
    budget = {"x_steelyard_task": "run 1", "x_steelyard_task_budget": "0.000400"}
    async with open_house(database, tmp_path) as house, client_of(house, retries=3, **budget) as client:
        with pytest.raises(openai.RateLimitError) as raised:
            await loop(client)
        served = len(house.admitted())
        assert served > 0
        assert (raised.value.type, raised.value.code) == ("insufficient_quota", "budget_exhausted")
        assert "The task's budget of 0.0004 USD" in raised.value.message
        assert len(house.refused()) == 1


async def test_a_closed_task_is_a_conflict_that_is_not_retried(database: Database, tmp_path: Path) -> None:
    async with (
        open_house(database, tmp_path) as house,
        client_of(house, retries=3, x_steelyard_task="run 1") as client,
    ):
        await ask(client)
        await execute(database, "UPDATE task SET status = 'closed', closed_at = now()")
        with pytest.raises(openai.ConflictError) as raised:
            await loop(client)
        await house.until_refused("task_closed")
        assert len(house.refused()) == 1
    assert raised.value.code == "task_closed"


async def test_a_task_that_can_not_be_is_a_bad_request(database: Database, tmp_path: Path) -> None:
    async with (
        open_house(database, tmp_path) as house,
        client_of(house, x_steelyard_task="run", x_steelyard_task_budget="much") as client,
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client)
    assert raised.value.code == "task_invalid"
    assert "X-Steelyard-Task-Budget" in raised.value.message


async def test_an_answer_says_that_it_was_clamped_and_where_rates_stand(
    database: Database, tmp_path: Path
) -> None:
    limits = all_of(clamping(), limit("requests", "minute", 60), limit("output_tokens", "day", 20))
    async with open_house(database, tmp_path, before=limits) as house, client_of(house) as client:
        answer = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=_MESSAGES, max_tokens=500
        )
        assert answer.headers["x-steelyard-max-tokens"] == "20; clamped-by=output_tokens_per_day"
        assert answer.headers["x-ratelimit-limit-requests"] == "60"
        assert int(answer.headers["x-ratelimit-remaining-requests"]) < 60
        completion: Any = answer.parse()
        assert completion.usage.completion_tokens == 20
        assert completion.choices[0].finish_reason == "length"
