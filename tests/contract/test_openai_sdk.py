"""The official `openai` SDK, as its users write it, against the gateway with a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.app.gateway.captures import LLAMA, VLLM, body
from tests.app.gateway.engines import serve
from tests.app.gateway.house import MODEL, House, add_backend, execute, open_house
from tests.database import Database, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")
_MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    database = database_server.create(template=_template)
    folder: Path = tmp_path_factory.mktemp("journal")
    try:
        async with open_house(database, folder, idle_timeout_s=1.0) as opened:
            yield opened
    finally:
        database_server.drop(database.name)


def _client(house: House, *, key: str | None = None) -> AsyncOpenAI:
    url = f"http://127.0.0.1:{house.port}/v1"
    return AsyncOpenAI(base_url=url, api_key=key or house.seeded.secret, max_retries=0)


async def _ask(house: House, content: str, **more: Any) -> Any:
    async with _client(house) as client:
        messages: Any = [{"role": "user", "content": content}]
        return await client.chat.completions.create(model=MODEL, messages=messages, **more)


async def test_a_chat_completion(house: House) -> None:
    answer = await _ask(house, "Hello", max_tokens=6)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == MODEL
    assert answer.usage.completion_tokens == 6
    assert answer._request_id.startswith("req_")


async def test_a_completion(house: House) -> None:
    async with _client(house) as client:
        answer = await client.completions.create(model=MODEL, prompt="Once", max_tokens=3)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_a_streamed_chat_without_usage_has_a_choice_in_every_chunk(house: House) -> None:
    async with _client(house) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=_MESSAGES, max_tokens=5, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def test_a_streamed_chat_with_usage_has_it_in_the_last_chunk_alone(house: House) -> None:
    async with _client(house) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=_MESSAGES,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_a_streamed_completion(house: House) -> None:
    async with _client(house) as client:
        stream = await client.completions.create(model=MODEL, prompt="Once", max_tokens=4, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


async def test_models(house: House) -> None:
    async with _client(house) as client:
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)
    assert models == [one.id] == [MODEL]


async def test_an_unknown_key_is_an_authentication_error(house: House) -> None:
    async with _client(house, key="sk-sy-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            await client.chat.completions.create(model=MODEL, messages=_MESSAGES)
    assert raised.value.type == "invalid_api_key"
    assert raised.value.code == "key_unknown"


async def test_an_unknown_model_is_a_not_found_error(house: House) -> None:
    async with _client(house) as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="gpt-none", messages=_MESSAGES)
    assert (raised.value.type, raised.value.param) == ("model_not_found", "model")


async def test_a_bad_request_carries_the_engines_own_message(house: House) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await _ask(house, "word " * 60_000)
    assert "maximum context length" in raised.value.message


async def test_a_busy_engine_is_a_rate_limit_error_with_advice(house: House) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        await _ask(house, "[simulator fault=status:429]")
    assert raised.value.response.headers["retry-after"] == "1"
    assert raised.value.type == "rate_limit_exceeded"


async def test_a_broken_engine_is_an_internal_server_error(house: House) -> None:
    with pytest.raises(openai.InternalServerError):
        await _ask(house, "[simulator fault=status:500]")


async def test_a_stream_that_breaks_raises_and_does_not_end_quietly(house: House) -> None:
    messages: Any = [{"role": "user", "content": "[simulator fault=die:3]"}]
    async with _client(house) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=30, stream=True
        )
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
    assert raised.value.code == "engine_stream_broken"


async def test_the_sdk_retries_what_may_be_retried(house: House) -> None:
    url = f"http://127.0.0.1:{house.port}/v1"
    before = len(house.settled())
    async with AsyncOpenAI(base_url=url, api_key=house.seeded.secret, max_retries=1) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "[simulator fault=status:429]"}]
            )
    assert len(house.settled()) == before + 2


async def test_a_key_without_its_scope_is_a_permission_error(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path) as house, _client(house) as client:
        await execute(database, "UPDATE api_key SET scopes = '{usage:read}'")
        await _until_raised(client, openai.PermissionDeniedError)


async def test_an_empty_wallet_is_told_the_quota_and_not_retried(database: Database, tmp_path: Path) -> None:
    async with open_house(database, tmp_path, balance=0) as house:
        url = f"http://127.0.0.1:{house.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key=house.seeded.secret, max_retries=3) as client:
            with pytest.raises(openai.RateLimitError) as raised:
                await client.chat.completions.create(model=MODEL, messages=_MESSAGES)
        await house.until_refused("balance_too_low")
        assert len(house.refused()) == 1
    assert (raised.value.type, raised.value.code) == ("insufficient_quota", "balance_too_low")


async def test_an_empty_wallet_is_a_402_where_the_operator_prefers_it(
    database: Database, tmp_path: Path
) -> None:
    async with (
        open_house(database, tmp_path, balance=0, money_refusal_status=402) as house,
        _client(house) as client,
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model=MODEL, messages=_MESSAGES)
    assert raised.value.status_code == 402
    assert (raised.value.type, raised.value.code) == ("insufficient_quota", "balance_too_low")


async def _until_raised(client: AsyncOpenAI, kind: type[Exception]) -> None:
    for _ in range(200):
        try:
            await client.models.list()
        except kind:
            return
    pytest.fail(f"{kind.__name__} was not raised")


async def test_tools_and_schemas_reach_the_engine_as_they_are(database: Database, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def engine(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/health":
            return {}
        seen.append(asked)
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}]}

    tools: Any = [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]
    schema: Any = {"type": "json_schema", "json_schema": {"name": "é", "schema": {"type": "object"}}}
    async with open_house(database, tmp_path) as house, serve(engine) as base_url, _client(house) as client:
        await execute(database, "UPDATE backend SET status = 'removed'")
        await add_backend(database, house.seeded, base_url, engine="openai")
        for _ in range(200):
            try:
                await client.chat.completions.create(
                    model=MODEL,
                    messages=_MESSAGES,
                    tools=tools,
                    tool_choice="required",
                    response_format=schema,
                    max_completion_tokens=9,
                    seed=7,
                )
            except openai.InternalServerError:
                continue
            break
    assert seen[-1]["tools"] == tools
    assert seen[-1]["response_format"] == schema
    assert (seen[-1]["tool_choice"], seen[-1]["seed"], seen[-1]["messages"]) == ("required", 7, _MESSAGES)


@pytest.mark.parametrize(("recorded", "engine"), [(VLLM, "vllm"), (LLAMA, "llama-server")])
async def test_what_real_engines_answered_is_read_by_the_sdk(
    database: Database, tmp_path: Path, recorded: str, engine: str
) -> None:
    def replay(path: str, _asked: dict[str, Any]) -> dict[str, Any] | None:
        found: dict[str, Any] = msgspec.json.decode(body(recorded, "chat"))
        return {} if path == "/health" else found

    async with open_house(database, tmp_path) as house, serve(replay) as base_url, _client(house) as client:
        await execute(database, "UPDATE backend SET status = 'removed'")
        await add_backend(database, house.seeded, base_url, engine=engine, served="smollm2-135m-instruct")
        for _ in range(200):
            try:
                answer = await client.chat.completions.create(model=MODEL, messages=_MESSAGES)
            except openai.InternalServerError:
                continue
            if answer.choices[0].message.content == "The capital of France is Paris.":
                break
        assert answer.model == MODEL
        assert answer.usage is not None
        assert house.settled()[-1].usage.total == answer.usage.total_tokens == 50
