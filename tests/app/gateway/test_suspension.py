"""A suspended tenant: nothing new is admitted, and what runs finishes or is cut, as its operator chose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from billing.metering.model import NOTHING, Outcome
from scheduler.simulator.model import Options
from tests.app.gateway.house import SERVED, House, chat, execute, open_house
from tests.database import Database

_CHAT = "/v1/chat/completions"
_SUSPEND = "UPDATE tenant SET status = 'suspended'"


async def until_refused(house: House) -> None:
    async with asyncio.timeout(5):
        while (await house.client.post(_CHAT, json=chat(max_tokens=1))).status_code != 403:
            await asyncio.sleep(0.01)


async def test_a_running_stream_is_cut_with_an_error_and_not_billed(
    database: Database, tmp_path: Path
) -> None:
    options = Options(model=SERVED, chunk_ms=10)
    async with open_house(database, tmp_path, options=options) as house:
        await execute(database, "UPDATE tenant SET on_suspend = 'cut'")
        body = chat(stream=True, max_tokens=1000)
        async with asyncio.timeout(10), house.client.stream("POST", _CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await execute(database, _SUSPEND)
            told = [line async for line in lines if line]
        error = msgspec.json.decode(told[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["billed_tokens"]) == ("tenant_suspended", 0)
        (settled,) = await house.until_settled()
        assert (settled.outcome, settled.error_code) == (Outcome.ENGINE_FAILED, "tenant_suspended")
        assert (settled.billed, settled.cost_picos) == (NOTHING, 0)
        assert settled.usage.output > 0, "what was generated stands in the record"
        assert (await house.client.post(_CHAT, json=chat())).status_code == 403


async def test_a_running_stream_may_finish_while_new_ones_are_refused(
    database: Database, tmp_path: Path
) -> None:
    options = Options(model=SERVED, chunk_ms=10)
    async with open_house(database, tmp_path, options=options) as house:
        async with house.client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=100)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await execute(database, _SUSPEND)
            await until_refused(house)
            told = [line async for line in lines if line]
        assert told[-1] == "data: [DONE]"
        settled = [one for one in await house.until_settled() if one.usage.output == 100]
        assert [one.outcome for one in settled] == [Outcome.COMPLETED]


@pytest.mark.parametrize("policy", ["cut", "finish"])
async def test_what_others_run_is_never_cut(database: Database, tmp_path: Path, policy: str) -> None:
    options = Options(model=SERVED, chunk_ms=5)
    async with open_house(database, tmp_path, options=options) as house:
        await execute(
            database,
            "INSERT INTO tenant (id, name, currency, on_suspend) VALUES ('ten_other', 'Other', 'USD', $1)",
            policy,
        )
        async with house.client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=60)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await execute(database, _SUSPEND + " WHERE id = 'ten_other'")
            told = [line async for line in lines if line]
        assert told[-1] == "data: [DONE]"
