"""Requests through the whole data plane: what is answered, journaled and billed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.journal.model import Settled
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from billing.rating.model import cost
from tests.app.gateway.house import MODEL, House, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def _streamed(house: House, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
    """(request id, body) of a stream that is read to its end."""
    async with house.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return answer.headers["x-request-id"], b"".join([piece async for piece in answer.aiter_raw()])


def _agrees_with_the_engine(house: House, settled: Settled) -> bool:
    served = house.engine.stats.requests[settled.request_id]
    return (settled.usage.input + settled.usage.input_cached, settled.usage.output) == (
        served.prompt_tokens,
        served.generated_tokens,
    )


async def test_an_answer_is_on_the_disk_before_its_client_has_it(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat())
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert answer.json()["model"] == MODEL
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage_source is UsageSource.ENGINE
    assert settled.usage == Usage(input=answer.json()["usage"]["prompt_tokens"], output=8)
    assert settled.finish_reason == "length"
    assert _agrees_with_the_engine(house, settled)


async def test_the_attempt_that_answered_has_its_times_though_it_is_open_when_written(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat())
    settled = house.settled_of(answer.headers["x-request-id"])
    [attempt] = settled.attempts
    assert attempt["outcome"] == "delivered"
    assert 0 <= attempt["duration_ms"] <= settled.duration_ms + 1


async def test_the_charge_is_the_usage_at_the_pinned_rates_and_within_the_hold(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat())
    settled = house.settled_of(answer.headers["x-request-id"])
    admitted = house.admitted_of(answer.headers["x-request-id"])
    assert settled.cost_picos == cost(settled.usage, admitted.rates) > 0
    (used,), (held,) = settled.used, admitted.holds
    assert (used.allowance_id, used.held) == (held.allowance_id, held.amount)
    assert used.used == settled.cost_picos <= used.held


@pytest.mark.parametrize("path", [_CHAT, _COMPLETIONS])
async def test_a_stream_is_metered_though_its_client_sees_no_usage(house: House, path: str) -> None:
    body = chat() if path == _CHAT else {"model": MODEL, "prompt": "Once upon", "max_tokens": 5}
    request_id, data = await _streamed(house, path, body)
    settled = house.settled_of(request_id)
    assert data.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in data
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage_source is UsageSource.ENGINE
    assert settled.usage.output == body["max_tokens"]
    assert settled.bytes_relayed == len(data)
    assert _agrees_with_the_engine(house, settled)


async def test_a_stream_shows_usage_once_to_a_client_that_asked(house: House) -> None:
    _, data = await _streamed(house, _CHAT, chat(stream_options={"include_usage": True}))
    events = [event for event in data.split(b"\n\n") if b'"usage"' in event]
    (event,) = events
    chunk = msgspec.json.decode(event.removeprefix(b"data: "))
    assert chunk["choices"] == []
    assert chunk["model"] == MODEL
    assert chunk["usage"]["completion_tokens"] == 8


async def test_several_choices_count_their_prompt_once(house: House) -> None:
    one = await house.client.post(_CHAT, json=chat())
    request_id, _ = await _streamed(house, _CHAT, chat(n=3))
    three = house.settled_of(request_id)
    assert three.usage.output == 24
    admitted = house.admitted_of(request_id)
    assert (admitted.choices, admitted.prompts) == (3, 1)
    assert three.usage.input == one.json()["usage"]["prompt_tokens"]


async def test_cached_tokens_are_a_class_of_their_own(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator cached=3] and some more words to read"))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert settled.usage.input_cached == 3
    assert settled.usage.input == answer.json()["usage"]["prompt_tokens"] - 3


async def test_a_missing_limit_becomes_the_models_default(house: House) -> None:
    body = chat()
    del body["max_tokens"]
    answer = await house.client.post(_CHAT, json=body)
    assert answer.json()["usage"]["completion_tokens"] == 64
    assert house.admitted_of(answer.headers["x-request-id"]).output_bound == 64


async def test_a_limit_above_the_models_is_cut_to_it(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat(max_tokens=100_000))
    assert answer.json()["usage"]["completion_tokens"] == 1024


async def test_an_engines_refusal_is_passed_on_and_free(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("word " * 60_000))
    settled = house.settled_of(answer.headers["x-request-id"])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "maximum context length" in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "engine_refused")
    assert settled.outcome is Outcome.REFUSED_BY_ENGINE
    assert (settled.usage, settled.cost_picos, settled.unknown_bound) == (NOTHING, 0, None)


async def test_an_overloaded_engine_is_a_503_with_advice(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=status:503]"))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert (settled.usage_source, settled.cost_picos) == (UsageSource.ENGINE, 0)


async def test_an_engines_fault_is_not_the_clients_and_not_billed(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=status:500]"))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "server_error"
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.usage_source is UsageSource.UNKNOWN
    assert settled.unknown_bound is not None
    assert settled.cost_picos == 0


async def test_an_answer_without_usage_is_unknown_and_never_zero(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=no_usage]"))
    settled = await house.until_settled_of(answer.headers["x-request-id"])
    admitted = house.admitted_of(answer.headers["x-request-id"])
    assert settled.usage_source is UsageSource.UNKNOWN
    assert settled.unknown_bound == Usage(input=admitted.input_bound, output=admitted.output_bound)


async def test_usage_said_twice_is_counted_once(house: House) -> None:
    request_id, _ = await _streamed(house, _CHAT, chat("[simulator fault=double_usage]"))
    assert _agrees_with_the_engine(house, house.settled_of(request_id))


async def test_text_of_many_scripts_arrives_unharmed(house: House) -> None:
    _, data = await _streamed(house, _CHAT, chat("[simulator tokens_per_chunk=3] 价格 🦊", max_tokens=50))
    for event in data.strip().split(b"\n\n")[:-1]:
        msgspec.json.decode(event.removeprefix(b"data: "))


async def test_the_models_that_the_key_may_use_are_listed(house: House) -> None:
    listed = (await house.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    one = await house.client.get(f"/v1/models/{MODEL}")
    assert one.json()["object"] == "model"
    missing = await house.client.get("/v1/models/none")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "model_not_found")


async def test_health_needs_no_key(house: House) -> None:
    answer = await house.client.get("/health", headers={"authorization": ""})
    assert answer.json() == {"status": "ok"}


async def test_an_unknown_model_is_a_404_and_recorded_as_refused(house: House) -> None:
    answer = await house.client.post(_CHAT, json={**chat(), "model": "nope\x00"})
    (refused,) = [one for one in house.refused() if one.request_id == answer.headers["x-request-id"]]
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_unknown"
    assert (refused.reason, refused.model_name) == ("model_unknown", None)


async def test_every_request_has_exactly_one_end(house: House) -> None:
    await house.client.post(_CHAT, json=chat())
    ends = [record.request_id for record in house.settled()]
    assert len(ends) == len(set(ends))
    assert set(ends) <= {record.request_id for record in house.admitted()}
