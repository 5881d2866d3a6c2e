"""Counting at the engine's own tokenizer, with hand-written engines that answer as the recorded ones do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core.ids import BackendId, DeploymentId
from app.gateway.answer import read_answer
from app.gateway.dialect import dialect_of
from app.gateway.tokenizer import Counted, TokenCounter, Uncounted, texts_of
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from scheduler.registry.model import BackendSpec
from scheduler.transport.client import EngineClient
from tests.app.gateway.captures import VLLM, body
from tests.app.gateway.engines import Answering, serve
from tests.app.gateway.stage import BACKEND, JSON, SSE, stage


def _vllm(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    if path != "/tokenize":
        return None
    return {"count": 42 if "messages" in asked else len(asked["prompt"].split())}


def _llama(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    if path == "/apply-template":
        return {"prompt": "<user> " + asked["messages"][0]["content"]}
    return {"tokens": list(range(len(asked["content"].split())))} if path == "/tokenize" else None


def _uncounted(base_url: str, engine: str, *texts: str) -> Uncounted:
    backend = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), base_url, engine, "m", 8)
    return Uncounted(backend, dialect_of(engine), texts=texts)


async def _count(answer: Answering, engine: str, *texts: str) -> Counted | None:
    client = EngineClient()
    try:
        async with serve(answer) as base_url:
            counter = TokenCounter(client, timeout_s=1.0)
            return await counter.count(stage().admission, _uncounted(base_url, engine, *texts))
    finally:
        await client.close()


@pytest.mark.parametrize(("engine", "answer", "prompt"), [("vllm", _vllm, 42), ("llama-server", _llama, 3)])
async def test_prompt_and_delivered_text_are_counted(engine: str, answer: Answering, prompt: int) -> None:
    assert await _count(answer, engine, "one two three", "four") == Counted(prompt, 4)


async def test_an_engine_that_can_not_count_is_not_guessed_for() -> None:
    assert await _count(lambda _path, _asked: None, "vllm", "one") is None
    assert await _count(lambda _path, _asked: {"other": 1}, "vllm", "one") is None
    assert await _count(_vllm, "openai", "one") is None


async def test_an_engine_that_is_gone_is_not_waited_for() -> None:
    client = EngineClient()
    counter = TokenCounter(client, timeout_s=1.0)
    assert await counter.count(stage().admission, _uncounted("http://127.0.0.1:9", "vllm", "a")) is None
    await client.close()


def test_the_text_of_each_choice_is_put_together() -> None:
    events = tuple(body(VLLM, "chat_stream").split(b"\n\n"))
    assert texts_of(events) == ("The capital of France is Paris.",)
    events = tuple(body(VLLM, "chat_n2_stream_usage").split(b"\n\n"))
    assert len(texts_of(events)) == 2


def _calls(*functions: dict[str, str]) -> dict[str, Any]:
    return {"tool_calls": [{"index": at, "function": one} for at, one in enumerate(functions)]}


def test_what_a_model_says_by_calling_tools_is_counted_too() -> None:
    deltas = [_calls({"name": "f", "arguments": ""}), _calls({"arguments": "{1"}, {"arguments": "2}"})]
    events = tuple(
        b"data: " + msgspec.json.encode({"choices": [{"index": 1, "delta": delta}]}) for delta in deltas
    )
    assert texts_of(events) == ("f{12}",)
    message = {"content": None, **_calls({"name": "f", "arguments": "{}"}), "function_call": {"name": "g"}}
    answer = read_answer(msgspec.json.encode({"choices": [{"message": message}]}), usage_holds=False)
    assert answer is not None
    assert answer.texts == ("gf{}",)


async def test_the_prompt_is_counted_with_its_tools() -> None:
    heard: list[dict[str, Any]] = []

    def answer(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        heard.append(asked)
        return _llama(path, asked)

    admission = stage(tools=[{"type": "function", "function": {"name": "f"}}]).admission
    client = EngineClient()
    async with serve(answer) as base_url:
        await TokenCounter(client, timeout_s=1.0).count(admission, _uncounted(base_url, "llama-server", "a"))
    await client.close()
    assert [asked["tools"][0]["function"]["name"] for asked in heard if "messages" in asked] == ["f"]


def test_what_is_no_event_says_nothing() -> None:
    assert texts_of((b": ping", b"data: [DONE]", b"data: {", b"data: null")) == ()


async def _cut_without_usage(engine_answers: Answering) -> Any:
    client = EngineClient()
    async with serve(engine_answers) as base_url:
        backend = replace(BACKEND, base_url=base_url)
        on = stage(backend=backend, client=client)
        on.relay.head(200, SSE, backend=backend)
        delta = {"choices": [{"index": 0, "delta": {"content": "three more words"}, "finish_reason": None}]}
        on.relay.piece(b"data: " + msgspec.json.encode(delta) + b"\n\n")
        on.relay.gone()
        assert on.journal.settled == []
        await on.desk.close()
    await client.close()
    (settled,) = on.journal.settled
    return settled


async def test_a_cut_stream_that_reports_nothing_is_counted_within_its_bound_and_billed() -> None:
    settled = await _cut_without_usage(_vllm)
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.usage_source is UsageSource.TOKENIZER
    assert settled.usage == Usage(input=42, output=3)
    assert settled.flags == ("estimated", "cached_unknown")
    assert settled.cost_picos == 42 + 2 * 3


async def test_a_tokenizer_that_lies_is_cut_to_the_bound() -> None:
    settled = await _cut_without_usage(lambda _path, _asked: {"count": 1_165_619})
    assert settled.usage == Usage(input=100, output=50)
    assert settled.flags == ("estimated", "input_capped", "output_capped", "cached_unknown")


async def test_what_no_tokenizer_counts_is_unknown_with_its_bound() -> None:
    settled = await _cut_without_usage(lambda _path, _asked: None)
    assert settled.usage_source is UsageSource.UNKNOWN
    assert (settled.usage, settled.cost_picos) == (NOTHING, 0)
    assert settled.unknown_bound == Usage(input=100, output=50)


async def test_a_whole_answer_without_usage_is_counted_before_it_leaves() -> None:
    client = EngineClient()
    async with serve(_vllm) as base_url:
        backend = replace(BACKEND, base_url=base_url)
        on = stage(streamed=False, backend=backend, client=client)
        on.relay.head(200, JSON, backend=backend)
        answer = {"choices": [{"message": {"content": "two words"}, "finish_reason": "stop"}]}
        on.relay.piece(msgspec.json.encode(answer))
        on.relay.end()
        await asyncio.sleep(0)
        await on.desk.close()
        on.journal.commit()
        await on.pump()
    await client.close()
    assert on.journal.settled[0].usage == Usage(input=42, output=2)
    assert on.is_whole
