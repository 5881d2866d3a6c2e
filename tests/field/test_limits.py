"""Limits that leaked elsewhere: what is spent and held never exceeds what there is, and all comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.money import parse_picos
from billing.metering.model import Outcome
from scheduler.simulator.model import Options
from tests.app.gateway.house import SERVED, chat, execute, open_house
from tests.database import Database
from tests.field.pair import open_pair, until
from tests.field.replay import counts, whole
from tests.field.stand import listening, post_all, request_bytes, rows

_CHAT = "/v1/chat/completions"
_COVERED, _ASKED = 10, 50
_HELD = "SELECT coalesce(sum(granted - settled - returned), 0) AS picos FROM lease"


async def test_fifty_at_once_at_two_processes_never_pass_a_balance_for_ten(
    database: Database, tmp_path: Path
) -> None:
    body = chat("script:slow", max_tokens=40)
    async with (
        listening() as engine,
        open_pair(database, tmp_path, balance=0, engine_url=engine.base_url) as pair,
    ):
        engine.scripts["slow"] = replace(whole("done", counts(10, 40)), waits=True)
        refused = await pair.ask(0, body)
        balance = _COVERED * parse_picos(refused.json()["error"]["needed"])
        await execute(database, "UPDATE allowance SET limit_amount = $1", balance)
        asked = [asyncio.create_task(pair.ask(number % 2, body)) for number in range(_ASKED)]

        async def all_are_running_or_refused() -> bool:
            return engine.waiting + sum(task.done() for task in asked) == _ASKED

        await until(all_are_running_or_refused, within_s=60)
        running = engine.waiting
        engine.released.set()
        answers = await asyncio.gather(*asked)

        async def all_posted() -> bool:
            (events,) = await rows(database, "SELECT count(*) AS n FROM usage_event")
            return bool(events["n"] == running)

        await until(all_posted)
        (wallet,) = await rows(database, "SELECT limit_amount, spent FROM allowance")
        (events,) = await rows(database, "SELECT sum(cost) AS cost FROM usage_event")
    assert 0 < running <= _COVERED
    assert sorted(answer.status_code for answer in answers) == [200] * running + [429] * (_ASKED - running)
    assert wallet["spent"] == events["cost"] <= balance
    told = [answer.json()["error"] for answer in answers if answer.status_code == 429]
    assert all(parse_picos(error["available"]) < parse_picos(error["needed"]) for error in told)


async def test_a_request_without_a_limit_holds_the_models_default_and_leaves_the_rest(
    database: Database, tmp_path: Path
) -> None:
    body = chat("[simulator chunk_ms=20]")
    del body["max_tokens"]
    async with open_house(database, tmp_path, balance=10**9) as house:
        answers = await asyncio.gather(*(house.client.post(_CHAT, json=body) for _ in range(2)))
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [admitted.output_bound for admitted in house.admitted()] == [64, 64]
        assert sum(admitted.holds[0].amount for admitted in house.admitted()) <= 10**9
        greedy = await house.client.post(_CHAT, json={**body, "max_tokens": 1024})
        assert greedy.status_code == 429, "as much output as the model can make is not covered"


async def test_a_prompt_is_held_for_before_an_engine_sees_it(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, balance=10**9) as house:
        short = await house.client.post(_CHAT, json=chat(max_tokens=1))
        long = await house.client.post(_CHAT, json=chat("long " * 700, max_tokens=1))
        assert (short.status_code, long.status_code) == (200, 429)
        assert len(house.engine.stats.requests) == 1


async def test_a_balance_that_is_used_up_is_a_hard_limit(database: Database, tmp_path: Path) -> None:
    balance = 2 * 10**9
    async with open_house(database, tmp_path, balance=balance) as house:
        statuses: list[int] = []
        while not statuses or statuses[-1] == 200:
            statuses.append((await house.client.post(_CHAT, json=chat(max_tokens=64))).status_code)
        spent = sum(settled.cost_picos for settled in house.settled())
    assert statuses[-1] == 429
    assert 0 < spent <= balance


async def test_what_requests_held_comes_back_however_they_ended(database: Database, tmp_path: Path) -> None:
    directives = ("", "fault=die:3", "fault=error:3", "fault=status:400", "fault=reset", "fault=status:500")
    async with open_house(database, tmp_path, options=Options(model=SERVED, chunk_ms=1)) as house:
        for directive in directives:
            for streamed in (True, False):
                text = f"[simulator {directive}]" if directive else "plain"
                await house.client.post(_CHAT, json=chat(text, stream=streamed))
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        writer.write(request_bytes(house, chat("[simulator fault=stall:3]", stream=True, max_tokens=500)))
        await reader.readuntil(b"data:")
        writer.transport.abort()
        settled = await house.until_settled(2 * len(directives) + 1)
    await post_all(database, tmp_path)
    (wallet,) = await rows(database, "SELECT spent FROM allowance")
    (held,) = await rows(database, _HELD)
    outcomes = {one.outcome for one in settled}
    assert {Outcome.COMPLETED, Outcome.ENGINE_FAILED, Outcome.REFUSED_BY_ENGINE} <= outcomes
    assert Outcome.CLIENT_CANCELLED in outcomes
    assert held["picos"] == 0
    assert wallet["spent"] == sum(one.cost_picos for one in settled) > 0


@pytest.mark.parametrize(
    ("start", "before", "change", "after"), [(0, 429, 10**12, 200), (10**12, 200, 0, 429)]
)
async def test_a_changed_balance_counts_at_every_process(
    database: Database, tmp_path: Path, start: int, before: int, change: int, after: int
) -> None:
    async with open_pair(database, tmp_path, balance=start) as pair:
        assert {(await pair.ask(which, chat())).status_code for which in range(2)} == {before}
        await execute(database, "UPDATE allowance SET limit_amount = $1", change)
        await pair.until_both(after, chat())
