"""Streams that were reported as free, doubled or charged though they failed: each is weighed as it was."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from billing.metering.model import NOTHING, Outcome, UsageSource
from tests.app.gateway.house import chat
from tests.field.replay import DONE, Ending, Script, counts, event, says, whole
from tests.field.stand import Stand, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT = "/v1/chat/completions"
_ESTIMATE = 1_165_619


def _saying(*texts: str, prompt: int = 12) -> list[bytes]:
    """Chunks as vLLM sends them: each with the cumulative usage so far, the first only naming the role."""
    return [says("", usage=counts(prompt, 0))] + [
        says(text, usage=counts(prompt, at)) for at, text in enumerate(texts, start=1)
    ]


async def test_a_client_that_closes_before_done_has_had_the_whole_answer(vllm: Stand) -> None:
    finish = says(finish="stop", usage=counts(12, 2))
    script = Script(events=[*_saying("a", "b"), finish], ending=Ending.HOLD)
    _, settled = await vllm.cut("finished", script)
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage_source is UsageSource.ENGINE
    assert settled.usage.output == 2


async def test_a_client_that_gives_up_on_a_plain_answer_leaves_a_row_and_stops_the_engine(
    vllm: Stand,
) -> None:
    house = vllm.house
    vllm.replay.scripts["slow"] = Script(ending=Ending.HOLD)
    before = {admitted.request_id for admitted in house.admitted()}
    _, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(request_bytes(house, chat("script:slow")))
    await vllm.replay.until_played("slow")
    writer.transport.abort()
    await vllm.replay.until_abandoned("slow")
    (request_id,) = {admitted.request_id for admitted in house.admitted()} - before
    settled = await house.until_settled_of(request_id)
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.usage_source in (UsageSource.UNKNOWN, UsageSource.TOKENIZER)
    assert settled.usage_source is not UsageSource.UNKNOWN or settled.unknown_bound is not None


@pytest.mark.parametrize("ending", [Ending.CUT, Ending.END])
async def test_a_stream_that_fails_without_output_does_not_charge_its_prompt(
    vllm: Stand, ending: Ending
) -> None:
    events = [says("", usage=counts(5_000, 0))]
    data, settled = await vllm.streamed(f"empty_{ending}", Script(events=events, ending=ending))
    assert b"engine_stream_broken" in data
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.usage.input == 5_000
    assert (settled.billed, settled.cost_picos) == (NOTHING, 0)


async def test_a_stream_that_fails_midway_is_an_error_event_and_a_row_of_its_usage(vllm: Stand) -> None:
    script = Script(events=_saying("a", "b", "c"), ending=Ending.CUT)
    data, settled = await vllm.streamed("broken", script)
    last = msgspec.json.decode(data.rstrip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert last["error"]["request_id"] == settled.request_id
    assert b"[DONE]" not in data
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.usage_source is UsageSource.ENGINE_PARTIAL
    assert settled.usage.output == 3
    assert settled.cost_picos == 0


async def test_done_after_an_error_is_no_success(vllm: Stand) -> None:
    failed = event({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}})
    data, settled = await vllm.streamed("failed", Script(events=[*_saying("a"), failed, DONE]))
    assert b"[DONE]" not in data
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.cost_picos == 0


async def test_a_stream_without_any_event_is_no_empty_success(vllm: Stand) -> None:
    vllm.replay.scripts["nothing"] = Script()
    answer = await vllm.house.client.post(_CHAT, json=chat("script:nothing", stream=True))
    settled = await vllm.house.until_settled_of(answer.headers["x-request-id"])
    assert answer.status_code >= 500 or b"error" in answer.content
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.cost_picos == 0


async def test_an_estimate_beyond_the_models_limit_is_cut_to_the_requests_and_marked(llama: Stand) -> None:
    llama.replay.tokenize = lambda path, _asked: (
        {"prompt": "p"} if path == "/apply-template" else {"tokens": list(range(_ESTIMATE))}
    )
    script = Script(events=[says("a"), says("b")], ending=Ending.HOLD)
    _, settled = await llama.cut("estimate", script, max_tokens=100)
    admitted = llama.house.admitted_of(settled.request_id)
    assert settled.usage_source is UsageSource.TOKENIZER
    assert settled.usage.output == 100
    assert settled.usage.input == admitted.input_bound
    assert {"estimated", "output_capped", "input_capped"} <= set(settled.flags)
    assert settled.cost_picos <= admitted.holds[0].amount


async def test_a_proxy_in_between_is_told_not_to_keep_the_stream_back(vllm: Stand) -> None:
    vllm.replay.scripts["early"] = Script(events=_saying("first"), ending=Ending.HOLD)
    async with vllm.house.client.stream("POST", _CHAT, json=chat("script:early", stream=True)) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        first = b""
        async for piece in answer.aiter_raw():
            first += piece
            if b"first" in first:
                break
    assert b"first" in first


async def test_a_whole_answer_and_a_stream_of_the_same_words_cost_the_same(vllm: Stand) -> None:
    last = event({"choices": [], "usage": counts(12, 3)})
    streamed = Script(events=[*_saying("a", "b", "c"), says(finish="stop"), last, DONE])
    _, by_stream = await vllm.streamed("same_stream", streamed)
    _, at_once = await vllm.whole("same_whole", whole("abc", counts(12, 3)))
    assert by_stream.usage == at_once.usage
    assert by_stream.cost_picos == at_once.cost_picos > 0


@pytest.mark.parametrize("path", [_CHAT, "/v1/completions"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_every_route_is_metered_streamed_or_not(vllm: Stand, path: str, streamed: bool) -> None:
    name = f"route_{path.rpartition('/')[2]}_{streamed}"
    usage = counts(21, 2)
    chunk = {"id": "c", "choices": [{"index": 0, "text": "a b", "finish_reason": "stop"}], "usage": usage}
    stream = Script(events=[event(chunk), event({"choices": [], "usage": usage}), DONE])
    vllm.replay.scripts[name] = stream if streamed else Script(whole=msgspec.json.encode(chunk))
    body = {**chat(f"script:{name}"), "stream": streamed}
    if path != _CHAT:
        body["prompt"] = str(body.pop("messages"))
    answer: httpx.Response = await vllm.house.client.post(path, json=body)
    settled = await vllm.house.until_settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert settled.usage_source is UsageSource.ENGINE
    assert (settled.usage.input, settled.usage.output) == (21, 2)
    assert settled.cost_picos > 0
