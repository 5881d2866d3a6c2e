"""Answers that don't come to their end: who cut, what is billed, what client and engine see."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from app.gateway.outbox import HIGH_WATER_BYTES
from billing.journal.model import Settled
from billing.metering.model import NOTHING, Outcome, UsageSource
from billing.rating.model import cost
from tests.app.gateway.house import House, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT = "/v1/chat/completions"


async def _connect(house: House) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", house.port)


def _request(house: House, body: dict[str, Any]) -> bytes:
    data = msgspec.json.encode(body)
    head = (
        f"POST {_CHAT} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {house.seeded.secret}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def _until(house: House, reader: asyncio.StreamReader, mark: bytes) -> bytes:
    data = b""
    async with asyncio.timeout(10):
        while mark not in data:
            piece = await reader.read(65536)
            assert piece, f"the answer ended before {mark!r}: {data!r}"
            data += piece
    return data


def _id_in(data: bytes) -> str:
    return data.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()


async def _cut(house: House, body: dict[str, Any], *, after: bytes) -> Settled:
    """Read until `after` was seen, close the connection, and wait for the settlement."""
    reader, writer = await _connect(house)
    writer.write(_request(house, body))
    data = await _until(house, reader, after)
    writer.close()
    return await house.until_settled_of(_id_in(data))


async def _engine_is_idle(house: House) -> None:
    async with asyncio.timeout(5):
        while house.engine.stats.running:
            await asyncio.sleep(0.01)


async def test_a_stream_cut_by_the_client_bills_the_tokens_it_delivered(house: House) -> None:
    settled = await _cut(house, chat("[simulator chunk_ms=20]", stream=True, max_tokens=500), after=b"weighs")
    admitted = house.admitted_of(settled.request_id)
    await _engine_is_idle(house)
    served = house.engine.stats.requests[settled.request_id]
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.usage_source is UsageSource.ENGINE_PARTIAL
    assert "cached_unknown" in settled.flags
    assert 0 < settled.usage.output <= served.generated_tokens < 500
    assert settled.usage.input == served.prompt_tokens
    assert settled.cost_picos == cost(settled.usage, admitted.rates)
    assert served.outcome == "abort"


async def test_a_client_that_closes_right_after_the_end_has_a_complete_answer(house: House) -> None:
    settled = await _cut(house, chat(stream=True), after=b"[DONE]")
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage.output == 8


async def test_a_client_gone_before_the_first_byte_stops_the_engine(house: House) -> None:
    before = len(house.settled())
    _, writer = await _connect(house)
    writer.write(_request(house, chat("[simulator ttft_ms=5000]", stream=True)))
    async with asyncio.timeout(5):
        while not house.engine.stats.running:
            await asyncio.sleep(0.01)
    writer.close()
    settled = (await house.until_settled(before + 1))[-1]
    await _engine_is_idle(house)
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.usage_source is UsageSource.UNKNOWN
    assert settled.cost_picos == 0


async def test_a_client_gone_from_an_answer_that_is_not_streamed_stops_the_engine(house: House) -> None:
    before = len(house.settled())
    _, writer = await _connect(house)
    writer.write(_request(house, chat("[simulator chunk_ms=50]", max_tokens=500)))
    async with asyncio.timeout(5):
        while not house.engine.stats.running:
            await asyncio.sleep(0.01)
    writer.transport.abort()
    settled = (await house.until_settled(before + 1))[-1]
    await _engine_is_idle(house)
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.unknown_bound is not None


async def _broken(house: House, fault: str) -> tuple[bytes, Settled]:
    async with house.client.stream(
        "POST", _CHAT, json=chat(f"[simulator fault={fault}]", stream=True, max_tokens=50)
    ) as answer:
        data = b"".join([piece async for piece in answer.aiter_raw()])
    return data, house.settled_of(answer.headers["x-request-id"])


@pytest.mark.parametrize("fault", ["die:4", "error:4", "stall:4"])
async def test_a_stream_that_the_engine_breaks_ends_in_an_error_and_is_free(house: House, fault: str) -> None:
    data, settled = await _broken(house, fault)
    last = data.rstrip().split(b"\n\n")[-1]
    error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
    assert b"[DONE]" not in data
    assert error["code"] == "engine_stream_broken"
    assert error["request_id"] == settled.request_id
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.usage_source is UsageSource.ENGINE_PARTIAL
    assert settled.usage.output > 0
    assert (settled.billed, settled.cost_picos) == (NOTHING, 0)


async def test_the_usage_so_far_is_told_with_the_error(house: House) -> None:
    body = chat("[simulator fault=die:4]", stream=True, max_tokens=50, stream_options={"include_usage": True})
    answer = await house.client.post(_CHAT, json=body)
    last = msgspec.json.decode(answer.content.rstrip().split(b"\n\n")[-1].removeprefix(b"data: "))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert last["usage"]["completion_tokens"] == settled.usage.output


async def test_an_engine_that_never_answers_times_out(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=hang]", stream=True))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "engine_first_token_timeout"
    assert settled.outcome is Outcome.TIMED_OUT
    assert settled.usage_source is UsageSource.UNKNOWN
    assert settled.cost_picos == 0


async def test_an_engine_that_resets_the_connection_is_a_clear_error(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=reset]"))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code >= 500
    assert answer.json()["error"]["type"] == "server_error"
    assert settled.outcome is Outcome.ENGINE_FAILED


async def test_an_answer_cut_in_the_middle_of_its_json_is_an_error(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat("[simulator fault=die:2]"))
    settled = house.settled_of(answer.headers["x-request-id"])
    assert answer.status_code >= 500
    assert settled.outcome is Outcome.ENGINE_FAILED
    assert settled.cost_picos == 0


async def test_no_address_of_an_engine_reaches_a_client(house: House) -> None:
    for fault in ("reset", "hang", "die:2", "status:500"):
        for streamed in (True, False):
            if (fault, streamed) == ("hang", False):
                continue  # waits for the total deadline
            body = chat(f"[simulator fault={fault}]", stream=streamed)
            answer = await house.client.post(_CHAT, json=body)
            assert f":{house.engine.port}" not in answer.text
            assert "127.0.0.1" not in answer.text


async def test_a_reader_that_is_slow_slows_the_engine_and_not_the_memory(house: House) -> None:
    words, choices = 900, 40
    body = chat("Speak", stream=True, n=choices, max_tokens=words)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", house.port))
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(slow, _request(house, body))
        data = await loop.sock_recv(slow, 1024)
        async with asyncio.timeout(10):
            while house.metric("steelyard_buffered_bytes") < HIGH_WATER_BYTES:
                await asyncio.sleep(0.01)
        assert house.metric("steelyard_buffered_bytes") < 4 * HIGH_WATER_BYTES
        served = house.engine.stats.requests[_id_in(data)]
        assert served.generated_tokens < words * choices
        received = len(data)
        async with asyncio.timeout(60):
            while b"[DONE]" not in data:
                data = await loop.sock_recv(slow, 1 << 20)
                received += len(data)
    assert served.generated_tokens == words * choices
    settled = (await house.until_settled())[-1]
    assert settled.outcome is Outcome.COMPLETED
    assert settled.usage.output == words * choices
    assert received > settled.bytes_relayed > 4 * HIGH_WATER_BYTES


async def test_long_streams_leave_progress_in_the_journal(house: House) -> None:
    body = chat("[simulator chunk_ms=20]", stream=True, max_tokens=500)
    reader, writer = await _connect(house)
    writer.write(_request(house, body))
    request_id = _id_in(await _until(house, reader, b"data:"))
    async with asyncio.timeout(10):
        while not (rows := [r for p in house.progress() for r in p.readings if r.request_id == request_id]):
            await asyncio.sleep(0.05)
    writer.close()
    settled = await house.until_settled_of(request_id)
    assert rows[0].usage is not None
    assert 0 < rows[0].usage.output <= settled.usage.output
    assert 0 < rows[0].bytes_relayed <= settled.bytes_relayed
