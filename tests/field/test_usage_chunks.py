"""The usage chunks of streams: asked for always, shown only to who asked, cumulative and never added up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.metering.model import Meter, UsageSource
from tests.app.gateway.house import PRICES
from tests.field.replay import DONE, Script, counts, event, says, whole
from tests.field.stand import Stand

pytestmark = pytest.mark.asyncio(loop_scope="module")
_USAGE_ASKED = {"include_usage": True}


def _chunks(data: bytes) -> list[dict[str, Any]]:
    events = [piece.removeprefix(b"data: ") for piece in data.split(b"\n\n") if piece.startswith(b"data: {")]
    return [msgspec.json.decode(piece) for piece in events]


def _growing(tokens: int, *, prompt: int = 10) -> Script:
    """As vLLM with `continuous_usage_stats`: 1, 2, … tokens so far, and all of them once more at the end."""
    said = [says("x", usage=counts(prompt, so_far)) for so_far in range(1, tokens + 1)]
    last = event({"choices": [], "usage": counts(prompt, tokens)})
    return Script(events=[*said, says(finish="length", usage=counts(prompt, tokens)), last, DONE])


async def test_cumulative_usage_of_197_chunks_is_197_tokens_and_not_19503(vllm: Stand) -> None:
    _, settled = await vllm.streamed("omni", _growing(197), max_tokens=200)
    assert settled.usage.output == 197
    assert settled.cost_picos == 10 * PRICES[Meter.INPUT] + 197 * PRICES[Meter.OUTPUT]


async def test_a_later_usage_replaces_what_it_states_and_keeps_the_rest(vllm: Stand) -> None:
    first, later = says("a", usage=counts(25, 1)), says("b", finish="stop", usage=counts(completion=15))
    _, settled = await vllm.streamed("delta", Script(events=[first, later, DONE]), max_tokens=64)
    assert (settled.usage.input, settled.usage.output) == (25, 15)


async def test_a_client_that_did_not_ask_gets_choices_in_every_chunk(vllm: Stand) -> None:
    data, settled = await vllm.streamed("unasked", _growing(3))
    chunks = _chunks(data)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)
    assert settled.usage.output == 3


async def test_a_client_that_asked_gets_one_last_chunk_with_usage_and_no_choices(vllm: Stand) -> None:
    data, _ = await vllm.streamed("asked", _growing(3), stream_options=_USAGE_ASKED)
    *before, last = _chunks(data)
    assert last["choices"] == []
    assert last["usage"] == counts(10, 3)
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in before)


async def test_a_stream_is_counted_whether_or_not_its_client_asked(vllm: Stand) -> None:
    _, asked = await vllm.streamed("counted_asked", _growing(5), stream_options=_USAGE_ASKED)
    _, unasked = await vllm.streamed("counted_unasked", _growing(5))
    assert asked.usage == unasked.usage
    assert asked.usage_source is unasked.usage_source is UsageSource.ENGINE


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_zero_is_a_count_and_not_replaced_by_an_estimate(vllm: Stand, streamed: bool) -> None:
    vllm.replay.tokenize = lambda _path, _asked: {"count": 999}
    if streamed:
        zero = event({"choices": [], "usage": counts(7, 0)})
        script = Script(events=[says("some text"), says(finish="stop"), zero, DONE])
        _, settled = await vllm.streamed("zero_stream", script)
    else:
        _, settled = await vllm.whole("zero_whole", whole("some text", counts(7, 0)))
    assert settled.usage_source is UsageSource.ENGINE
    assert (settled.usage.input, settled.usage.output) == (7, 0)


async def test_a_null_is_no_count_and_not_taken_for_zero(vllm: Stand) -> None:
    vllm.replay.tokenize = lambda _path, asked: {"count": 7 if "messages" in asked else 3}
    _, settled = await vllm.whole("null", whole("three words here", None))
    assert settled.usage_source is UsageSource.TOKENIZER
    assert (settled.usage.input, settled.usage.output) == (7, 3)


async def test_usage_on_the_finishing_chunk_and_after_it_counts_once(vllm: Stand) -> None:
    twice = [
        says("ab", finish="stop", usage=counts(10, 2)),
        event({"choices": [], "usage": counts(10, 2, prompt_tokens_details={"cached_tokens": 4})}),
    ]
    _, settled = await vllm.streamed("twice", Script(events=[*twice, DONE]))
    assert (settled.usage.input, settled.usage.input_cached, settled.usage.output) == (6, 4, 2)


async def test_the_total_is_ours_whatever_the_engine_adds_up(vllm: Stand) -> None:
    _, settled = await vllm.whole("total", whole("ab", counts(100, 2, total_tokens=2)))
    assert settled.usage.total == 102
    assert settled.cost_picos == 100 * PRICES[Meter.INPUT] + 2 * PRICES[Meter.OUTPUT]
