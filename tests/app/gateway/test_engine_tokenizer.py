"""Asking engines to count, with hand-written engines that answer as the recorded ones do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.ids import BackendId, DeploymentId
from app.gateway.engine_tokenizer import EngineTokenizer, NotCounted
from app.gateway.model import Endpoint
from app.gateway.prompt import read_prompt
from scheduler.registry.model import BackendSpec
from scheduler.transport.client import EngineClient
from tests.app.gateway.engines import Answering, serve
from tests.app.gateway.stage import stage

_CHAT, _COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def vllm(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """vLLM: `/tokenize` of a prompt or of messages; a prompt's first token is special."""
    if path != "/tokenize":
        return None
    if "messages" in asked:
        return {"count": 42, "max_model_len": 4096, "tokens": [1] * 42, "token_strs": None}
    return {"count": len(asked["prompt"].split()) + asked["add_special_tokens"]}


def llama(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """llama-server: its own names, and the template is another route."""
    if path == "/apply-template":
        return {"prompt": "<user> " + asked["messages"][0]["content"]}
    if path != "/tokenize":
        return None
    return {"tokens": list(range(len(asked["content"].split()) + asked["add_special"]))}


def sglang(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """SGLang before it took messages: a `/tokenize` of prompts alone."""
    return None if "messages" in asked else vllm(path, asked)


async def _counts(answer: Answering, way: str, **asked: Any) -> tuple[int, int, tuple[str, ...]]:
    """(tokens of "three more words", of the prompt, flags)."""
    client = EngineClient()
    try:
        async with serve(answer) as base_url:
            backend = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), base_url, way, "m", 8)
            engine = EngineTokenizer(client, backend, way=way, timeout_s=5.0)
            spoken = await engine.count_text("three more words")
            prompt, flags = await engine.count_prompt(read_prompt(stage(**asked).admission.ask))
            return spoken, prompt, flags
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("way", "answer", "endpoint", "counted"),
    [
        ("vllm", vllm, _CHAT, (3, 42, ())),
        ("vllm", vllm, _COMPLETIONS, (3, 3, ())),
        ("llama", llama, _CHAT, (3, 4, ())),
        ("llama", llama, _COMPLETIONS, (3, 3, ())),
        ("sglang", vllm, _CHAT, (3, 42, ())),
        ("sglang", sglang, _CHAT, (3, 2, ("template_not_counted",))),
        ("sglang", sglang, _COMPLETIONS, (3, 3, ())),
    ],
)
async def test_texts_and_prompts_are_counted_as_the_engine_sees_them(
    way: str, answer: Answering, endpoint: Endpoint, counted: tuple[int, int, tuple[str, ...]]
) -> None:
    assert await _counts(answer, way, endpoint=endpoint) == counted


async def test_several_prompts_are_summed_and_tokens_are_counted_already() -> None:
    for prompt, tokens in ((["one two", "three"], 5), ([5, 6, 7, 8], 4), ([[5, 6], [7]], 3)):
        assert (await _counts(vllm, "vllm", endpoint=_COMPLETIONS, prompt=prompt))[1] == tokens


async def test_the_prompt_is_counted_with_its_tools() -> None:
    heard: list[dict[str, Any]] = []

    def answer(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        heard.append(asked)
        return llama(path, asked)

    await _counts(answer, "llama", tools=[{"type": "function", "function": {"name": "f"}}])
    assert [asked["tools"][0]["function"]["name"] for asked in heard if "messages" in asked] == ["f"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda *_: None,
        lambda *_: {},
        lambda *_: {"count": -1},
        lambda *_: {"count": True},
        lambda *_: {"count": "9", "tokens": 9},
    ],
)
@pytest.mark.parametrize("way", ["vllm", "sglang", "llama"])
async def test_an_engine_that_does_not_count_is_not_guessed_for(answer: Answering, way: str) -> None:
    with pytest.raises(NotCounted):
        await _counts(answer, way)


async def test_an_engine_that_is_gone_is_no_accident() -> None:
    client = EngineClient()
    backend = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), "http://127.0.0.1:9", "vllm", "m", 8)
    with pytest.raises(NotCounted, match="unreachable"):
        await EngineTokenizer(client, backend, way="vllm", timeout_s=5.0).count_text("a")
    await client.close()


async def test_a_question_that_is_given_up_closes_its_connection() -> None:
    closed, asked = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        while await reader.read(1024):
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    client = EngineClient()
    base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    backend = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), base_url, "vllm", "m", 8)
    question = asyncio.ensure_future(
        EngineTokenizer(client, backend, way="vllm", timeout_s=30.0).count_text("a")
    )
    async with asyncio.timeout(20):
        await asked.wait()
        question.cancel()
        await closed.wait()
    assert question.cancelled() or await asyncio.wait({question}) is not None
    await client.close()
    server.close()
    await server.wait_closed()
