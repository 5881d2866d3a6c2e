"""A client hangs up right after chunk k of a recorded stream, for every k, on engines of both kinds.

The engine sends k chunks and then nothing more, so what was counted until the hang-up is known exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.hangup import read_until
from billing.metering.model import Meter, Outcome, UsageSource
from tests.app.gateway.captures import VLLM, body
from tests.app.gateway.house import PRICES, chat, open_house
from tests.database import Database
from tests.field.replay import Ending, Script
from tests.field.stand import Stand, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_VLLM_STREAMS = {
    "chat_stream_usage_continuous": _CHAT,
    "chat_tools_named_stream_continuous": _CHAT,
    "completion_stream_continuous": _TEXT,
}
_LLAMA_STREAMS = {"chat_stream_timings.sse": _CHAT, "completion_stream_timings.sse": _TEXT}
_PROMPT = 40
"""What the scripted llama-server counts of a prompt."""


def _events(engine: str, name: str) -> list[bytes]:
    """The recorded events of a stream, without its `[DONE]`."""
    pieces = body(engine, name).split(b"\n\n")
    return [piece + b"\n\n" for piece in pieces if piece.startswith(b"data: {")]


def _chunks(events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def _counted(chunks: list[dict[str, Any]]) -> tuple[int, int] | None:
    """(prompt, output) by the last cumulative count in these chunks; None if none counts."""
    counted = None
    for chunk in chunks:
        if usage := chunk.get("usage"):
            counted = usage["prompt_tokens"], usage["completion_tokens"]
        elif timings := chunk.get("timings"):
            counted = timings["cache_n"] + timings["prompt_n"], timings["predicted_n"]
    return counted


def _is_finished(chunks: list[dict[str, Any]]) -> bool:
    return any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])


def _cost(prompt: int, output: int) -> int:
    return prompt * PRICES[Meter.INPUT] + output * PRICES[Meter.OUTPUT]


async def _every_cut(stand: Stand, engine: str, name: str, *, path: str) -> None:
    events = _events(engine, name)
    for k in range(1, len(events) + 1):
        chunks = _chunks(events[:k])
        counted = _counted(chunks)
        script = Script(events=events[:k], ending=Ending.HOLD)
        _, settled = await stand.cut(f"{name.partition('.')[0]}_{k}", script, path=path, max_tokens=64)
        prompt, output = counted if counted is not None else (_PROMPT, 0)
        told = f"{name} cut after chunk {k}"
        assert settled.outcome is (Outcome.COMPLETED if _is_finished(chunks) else Outcome.CLIENT_CANCELLED), (
            told
        )
        assert settled.usage_source is _source(chunks, counted is not None), told
        assert settled.usage.output == output, told
        assert settled.usage.total - output == prompt, told
        assert settled.billed == settled.usage, told
        assert settled.cost_picos == _cost(prompt, output), told


def _source(chunks: list[dict[str, Any]], is_counted: bool) -> UsageSource:
    if not is_counted:
        return UsageSource.TOKENIZER
    return UsageSource.ENGINE if _is_finished(chunks) else UsageSource.ENGINE_PARTIAL


@pytest.mark.parametrize("name", _VLLM_STREAMS)
async def test_a_cut_after_any_chunk_of_vllm_bills_its_last_cumulative_usage(vllm: Stand, name: str) -> None:
    await _every_cut(vllm, VLLM, name, path=_VLLM_STREAMS[name])


def _llama_tokenizer(path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    if path == "/apply-template":
        return {"prompt": "templated"}
    return {"tokens": list(range(_PROMPT))} if path == "/tokenize" else None


@pytest.mark.parametrize("name", _LLAMA_STREAMS)
async def test_a_cut_after_any_chunk_of_llama_server_bills_its_last_timings(llama: Stand, name: str) -> None:
    llama.replay.tokenize = _llama_tokenizer
    await _every_cut(llama, "llama-server", name, path=_LLAMA_STREAMS[name])


async def test_a_cut_of_two_choices_bills_what_each_had_said_and_their_prompt_once(vllm: Stand) -> None:
    events = _events(VLLM, "chat_n2_stream_continuous")
    for k in range(1, len(events)):
        by_choice = {
            chunk["choices"][0]["index"]: chunk["usage"] for chunk in _chunks(events[:k]) if chunk["choices"]
        }
        script = Script(events=events[:k], ending=Ending.HOLD)
        _, settled = await vllm.cut(f"two_choices_{k}", script, n=2, max_tokens=64)
        assert settled.usage.input == 10
        assert settled.usage.output == sum(usage["completion_tokens"] for usage in by_choice.values()), k
        assert settled.cost_picos == _cost(10, settled.usage.output)


async def test_a_cut_of_an_engine_that_tells_only_at_the_end_is_never_silently_nothing(plain: Stand) -> None:
    events = [
        piece + b"\n\n" for piece in body(VLLM, "chat_stream").split(b"\n\n") if piece.startswith(b"data: {")
    ]
    for k in range(1, len(events)):
        script = Script(events=events[:k], ending=Ending.HOLD)
        _, settled = await plain.cut(f"untold_{k}", script, max_tokens=64)
        assert settled.outcome is Outcome.CLIENT_CANCELLED
        assert settled.usage_source is UsageSource.UNKNOWN
        assert settled.unknown_bound is not None
        assert settled.unknown_bound.output == 64
        assert settled.unknown_bound.input > 0
        assert settled.cost_picos == 0


async def test_an_engine_is_left_at_once_when_its_listener_leaves(vllm: Stand) -> None:
    events = _events(VLLM, "completion_stream_continuous")[:3]
    _, settled = await vllm.cut("left", Script(events=events, ending=Ending.HOLD), path=_TEXT)
    assert vllm.replay.abandoned[-1] == "left"
    assert settled.usage.output == 3


async def test_an_engine_that_runs_on_is_paid_for_what_passed_and_not_for_what_it_still_made(
    database: Database, tmp_path: Path
) -> None:
    every = {"include_usage": True, "continuous_usage_stats": True}
    async with open_house(database, tmp_path) as house:
        for k in range(1, 9):
            body = chat("[simulator chunk_ms=5]", stream=True, max_tokens=900, stream_options=every)
            seen = await read_until(request_bytes(house, body), host="127.0.0.1", port=house.port, chunks=k)
            settled = await house.until_settled_of(seen.request_id)
            served = house.engine.stats.requests[seen.request_id]
            assert seen.told is not None
            assert seen.told <= settled.billed.output <= served.generated_tokens < 900, k
            assert settled.usage_source is UsageSource.ENGINE_PARTIAL
            assert settled.usage.input == served.prompt_tokens
