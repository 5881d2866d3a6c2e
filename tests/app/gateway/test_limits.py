"""Limits at a running gateway: which one refuses, what is told, and that a refusal takes nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.metering.model import Usage
from billing.quota.terms import Scope
from scheduler.simulator.model import Options
from tests.app.gateway.engines import serve
from tests.app.gateway.house import SERVED, House, add_backend, chat, execute, open_house
from tests.app.gateway.limited import all_of, clamping, limit, run
from tests.database import Database
from tests.field.stand import post_all

_CHAT = "/v1/chat/completions"


async def ask(house: House, content: str = "Say hi", **members: Any) -> httpx.Response:
    return await house.client.post(_CHAT, json=chat(content, **members))


async def status_of_stream(house: House) -> int:
    """The status of a stream that is left as it begins."""
    async with house.client.stream("POST", _CHAT, json=chat(stream=True)) as answer:
        return answer.status_code


def told(answer: httpx.Response, reason: str) -> dict[str, Any]:
    """The error of a refusal, which has this reason."""
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == reason, error
    return error


async def test_one_request_a_minute_is_one_request(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, before=limit("requests", "minute", 1)) as house:
        answers = await asyncio.gather(*(ask(house) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429, 429, 429]
        admitted = next(answer for answer in answers if answer.status_code == 200)
        assert admitted.headers["x-ratelimit-limit-requests"] == "1"
        assert admitted.headers["x-ratelimit-remaining-requests"] == "0"
        refused = next(answer for answer in answers if answer.status_code == 429)
        error = told(refused, "requests_per_minute")
        assert (error["type"], error["unit"], error["window"]) == (
            "rate_limit_exceeded",
            "requests",
            "minute",
        )
        assert (error["limit"], error["needed"], error["available"]) == ("1", "1", "0")
        assert error["scope"] == f"tenant {house.seeded.tenant_id}"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert "x-should-retry" not in refused.headers
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(house.admitted()) == 1


@pytest.mark.parametrize("of", ["tenant", "project", "key"])
async def test_a_refusal_names_whose_limit_it_was(database: Database, tmp_path: Path, of: Scope) -> None:
    wide = [limit("requests", "minute", 100, of=each) for each in ("tenant", "project", "key") if each != of]
    narrow = limit("requests", "minute", 1, of=of, model=True)
    async with open_house(database, tmp_path, before=all_of(*wide, narrow)) as house:
        assert (await ask(house)).status_code == 200
        error = told(await ask(house), "requests_per_minute")
        assert error["scope"].split()[0] == of
        assert error["model_id"] == house.seeded.model_id
        (row,) = await run(database, "SELECT id FROM allowance WHERE scope_kind = $1 AND model_id <> ''", of)
        refused = await house.until_refused("requests_per_minute")
        assert refused.allowance_id == error["allowance_id"] == row["id"]
        assert refused.facts is not None
        assert (refused.facts["scope"], refused.facts["needed"]) == (error["scope"], "1")


async def test_more_tokens_than_a_minute_has_are_refused_for_good(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, before=limit("tokens", "minute", 100)) as house:
        answer = await ask(house)
        error = told(answer, "tokens_per_minute")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
        assert "retry-after" not in answer.headers
        assert int(error["needed"]) > int(error["limit"]) == 100


async def test_what_an_answer_did_not_use_is_there_for_the_next(database: Database, tmp_path: Path) -> None:
    """Each needs some 620 tokens at most and uses about 15: a thousand a minute admit many."""
    async with open_house(database, tmp_path, before=limit("tokens", "minute", 1000)) as house:
        answers = [await ask(house) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8
        used = sum(one.usage.total for one in house.settled())
        left = int(answers[-1].headers["x-ratelimit-remaining-tokens"])
        assert left < 1000 - used + answers[-1].json()["usage"]["total_tokens"]


async def test_a_refusal_by_one_limit_takes_nothing_of_the_others(database: Database, tmp_path: Path) -> None:
    limits = all_of(limit("requests", "minute", 3), limit("output_tokens", "day", 20, of="key"))
    async with open_house(database, tmp_path, before=limits) as house:
        for _ in range(5):
            told(await ask(house, max_tokens=21), "budget_exhausted")
        answers = [await ask(house, max_tokens=1) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        told(answers[-1], "requests_per_minute")


async def test_a_days_budget_is_spent_to_its_end_and_says_when_the_next_begins(
    database: Database, tmp_path: Path
) -> None:
    async with open_house(database, tmp_path, before=limit("output_tokens", "day", 20)) as house:
        assert [(await ask(house)).status_code for _ in range(2)] == [200, 200]
        await post_all(database, tmp_path)
        answer = await ask(house)
        error = told(answer, "budget_exhausted")
        assert (answer.status_code, error["type"]) == (429, "insufficient_quota")
        assert (error["limit"], error["available"], error["needed"]) == ("20", "4", "8")
        ends = datetime.fromisoformat(error["resets_at"])
        assert (ends.hour, ends.minute) == (0, 0)
        wait = ends.timestamp() - datetime.now(UTC).timestamp()
        assert abs(int(answer.headers["retry-after"]) - wait) < 30
        assert answer.headers["x-should-retry"] == "false"
        assert (await ask(house, max_tokens=4)).status_code == 200
        told(await ask(house, max_tokens=1), "budget_exhausted")


async def test_as_many_run_at_once_as_may(database: Database, tmp_path: Path) -> None:
    slow = Options(model=SERVED, chunk_ms=60_000)
    async with open_house(
        database, tmp_path, options=slow, before=limit("concurrent", "running", 2)
    ) as house:
        running = [
            await house.client.send(
                house.client.build_request("POST", _CHAT, json=chat(stream=True)), stream=True
            )
            for _ in range(2)
        ]
        answer = await ask(house, stream=True)
        error = told(answer, "too_many_concurrent")
        assert (error["limit"], error["unit"], answer.headers["retry-after"]) == (
            "2",
            "requests at once",
            "1",
        )
        assert "x-should-retry" not in answer.headers
        for each in running:
            await each.aclose()
        await house.until_settled(2)
        async with asyncio.timeout(10):
            while await status_of_stream(house) != 200:
                await asyncio.sleep(0.01)
        assert [used.used for one in house.settled() for used in one.used if used.what == "concurrent"][
            :2
        ] == [
            0,
            0,
        ]


async def test_more_output_than_one_request_may_have_is_refused(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, before=limit("max_output", "request", 10)) as house:
        answer = await ask(house, max_tokens=11)
        error = told(answer, "output_limit")
        assert (answer.status_code, error["limit"], error["observed"]) == (400, "10", "11")
        assert error["param"] == "max_tokens"
        assert (await ask(house, max_tokens=10)).json()["usage"]["completion_tokens"] == 10
        body = chat()
        del body["max_tokens"]
        answer = await house.client.post(_CHAT, json=body)
        assert answer.json()["usage"]["completion_tokens"] == 10
        assert "x-steelyard-max-tokens" not in answer.headers


async def test_a_context_ceiling_counts_input_and_output(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, before=limit("max_context", "request", 1000)) as house:
        assert (await ask(house)).status_code == 200
        answer = await ask(house, max_tokens=900)
        error = told(answer, "context_too_long")
        assert (answer.status_code, error["limit"]) == (400, "1000")
        assert "up to" in error["message"]


async def test_where_a_project_wants_it_a_request_gets_the_output_that_is_left(
    database: Database, tmp_path: Path
) -> None:
    limits = all_of(clamping(), limit("output_tokens", "day", 30, of="project"))
    async with open_house(database, tmp_path, before=limits) as house:
        answer = await ask(house, max_tokens=1000)
        assert answer.json()["usage"]["completion_tokens"] == 30
        assert answer.headers["x-steelyard-max-tokens"] == "30; clamped-by=output_tokens_per_day"
        told(await ask(house, max_tokens=1), "budget_exhausted")


async def test_a_clamp_takes_the_tightest_of_several_limits(database: Database, tmp_path: Path) -> None:
    limits = all_of(
        clamping(),
        limit("max_output", "request", 50),
        limit("tokens", "minute", 700),
        limit("output_tokens", "day", 20),
    )
    async with open_house(database, tmp_path, before=limits) as house:
        answer = await ask(house, max_tokens=1000)
        assert answer.headers["x-steelyard-max-tokens"] == "20; clamped-by=output_tokens_per_day"
        assert answer.json()["usage"]["completion_tokens"] == 20


async def test_a_wallet_that_covers_some_output_gives_that_much(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, before=clamping(), balance=400_000_000) as house:
        answer = await ask(house, max_tokens=1000)
        (admitted,) = house.admitted()
        assert answer.headers["x-steelyard-max-tokens"] == f"{admitted.output_bound}; clamped-by=balance"
        held = admitted.holds[0].amount
        assert held <= 400_000_000 < held + admitted.rates.output
        assert answer.json()["usage"]["completion_tokens"] == admitted.output_bound


async def test_an_input_whose_bound_does_not_fit_is_counted_exactly(
    database: Database, tmp_path: Path
) -> None:
    asked: list[str] = []

    def engine(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(path)
        if path == "/tokenize":
            assert body["messages"] == [{"role": "user", "content": "Say hi"}]
            return {"count": 12}
        message = {"role": "assistant", "content": "hi"}
        usage = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage}

    limits = limit("tokens", "minute", 100)
    async with open_house(database, tmp_path, before=limits) as house, serve(engine) as base_url:
        await execute(database, "UPDATE backend SET status = 'removed'")
        await add_backend(database, house.seeded, base_url, engine="vllm")
        async with asyncio.timeout(10):
            while (answer := await ask(house)).status_code != 200:
                await asyncio.sleep(0.02)
        (admitted,) = house.admitted()
        assert admitted.input_bound == 12
        assert answer.headers["x-ratelimit-limit-tokens"] == "100"
        assert house.settled()[0].billed == Usage(input=12, output=2)
        asked.clear()
        told(await ask(house, max_tokens=89), "tokens_per_minute")
        assert "/tokenize" in asked
        asked.clear()
        told(await ask(house, max_tokens=101), "tokens_per_minute")
        assert "/tokenize" not in asked, "not even a shortest prompt would fit"


async def test_a_limit_that_is_edited_counts_at_once(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house:
        assert (await ask(house)).status_code == 200
        await limit("max_output", "request", 1)(database, house.seeded)
        async with asyncio.timeout(5):
            while (await ask(house)).status_code != 400:
                await asyncio.sleep(0.01)
        await limit("max_output", "request", None)(database, house.seeded)
        async with asyncio.timeout(5):
            while (await ask(house)).status_code != 200:
                await asyncio.sleep(0.01)
