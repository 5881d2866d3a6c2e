"""Time limits on real connections, and streams of a plain engine: what is told, and what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from billing.metering.model import NOTHING, Outcome, UsageSource
from billing.rating.model import cost
from tests.app.gateway.house import House, chat, open_house
from tests.app.gateway.words import save_words
from tests.database import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """A gateway that gives an answer two seconds in all, before an engine that reports only at its end."""
    database = database_server.create(template=_template)
    tokenizer = save_words(tmp_path_factory.mktemp("tokenizer"))
    journal = tmp_path_factory.mktemp("journal")
    try:
        async with open_house(
            database, journal, engine_kind="openai", tokenizer=tokenizer, request_timeout_s=2.0
        ) as opened:
            yield opened
    finally:
        database_server.drop(database.name)


async def test_a_whole_answer_that_takes_too_long_is_told_its_id_and_that_it_is_free(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator chunk_ms=100]", max_tokens=500))
    error = answer.json()["error"]
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 504
    assert (error["request_id"], error["billed_tokens"]) == (settled.request_id, 0)
    assert (settled.outcome, settled.usage_source) == (Outcome.TIMED_OUT, UsageSource.UNKNOWN)
    assert (settled.usage, settled.billed) == (NOTHING, NOTHING)
    assert settled.unknown_bound is not None


async def test_a_stream_that_takes_too_long_pays_what_was_counted_and_is_told_so(house: House) -> None:
    body = chat("Say on [simulator chunk_ms=100]", max_tokens=500, stream=True)
    answer = await house.client.post(_CHAT, json=body)
    request_id = answer.headers["x-request-id"]
    settled, admitted = house.settled_of(request_id), house.admitted_of(request_id)
    error = msgspec.json.decode(answer.content.rstrip().split(b"\n\n")[-1].removeprefix(b"data: "))["error"]
    assert (settled.outcome, settled.usage_source) == (Outcome.TIMED_OUT, UsageSource.TOKENIZER)
    assert "template_not_counted" in settled.flags
    assert 0 < settled.usage.output < 500
    assert settled.billed == settled.usage
    assert settled.cost_picos == cost(settled.usage, admitted.rates) > 0
    assert (error["request_id"], error["billed_tokens"]) == (request_id, settled.usage.total)


async def test_a_cut_stream_of_a_plain_engine_is_billed_for_what_it_delivered(house: House) -> None:
    body = chat("Say on [simulator chunk_ms=20]", max_tokens=500, stream=True)
    async with house.client.stream("POST", _CHAT, json=body) as answer:
        request_id = answer.headers["x-request-id"]
        data = b""
        async for piece in answer.aiter_raw():
            data += piece
            if data.count(b"\n\n") >= 6:
                break
    settled = await house.until_settled_of(request_id)
    assert (settled.outcome, settled.usage_source) == (Outcome.CLIENT_CANCELLED, UsageSource.TOKENIZER)
    assert settled.usage.output > 0
    assert settled.cost_picos > 0
    assert house.metric('steelyard_token_counts_total{way="file",result="counted"}') > 0
    assert house.metric('steelyard_tokenizer_loads_total{result="loaded"}') > 0


async def test_a_plain_engine_that_ends_is_believed_and_not_counted_again(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("Say on", stream=True))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert (settled.outcome, settled.usage_source) == (Outcome.COMPLETED, UsageSource.ENGINE)
    assert settled.usage.output == 8
