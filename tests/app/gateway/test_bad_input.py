"""Broken, oversized, slow and hostile input: a clear 4xx in OpenAI's shape or a closed connection."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import msgspec
import pytest

from tests.app.gateway.house import House, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT = "/v1/chat/completions"
_LIMIT = 16 * 1024 * 1024


async def _talk(house: House, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send these bytes, and return all that comes until the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def _head(house: House, *lines: str, method: str = "POST", path: str = _CHAT) -> bytes:
    key = f"authorization: Bearer {house.seeded.secret}"
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: g", key, *lines, "", "")).encode()


def _error(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    error: dict[str, Any] = msgspec.json.decode(body)["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return int(head.split(b" ", 2)[1]), error


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\x00\x00",
        b"[]",
        b'{"model":"test-model","messages":[{"content":"\xff"}]}',
        b'{"model":"test-model","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=["cut", "empty", "nul", "list", "utf8", "deep"],
)
async def test_a_broken_body_is_a_400(house: House, body: bytes) -> None:
    answer = await house.client.post(_CHAT, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("body_invalid", "parameter_invalid")
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]


async def test_a_wrong_type_names_its_parameter(house: House) -> None:
    answer = await house.client.post(_CHAT, json=chat(max_tokens="many"))
    assert answer.json()["error"]["param"] == "max_tokens"


async def test_a_body_too_large_is_refused_by_its_head(house: House) -> None:
    answer = await _talk(house, _head(house, f"content-length: {_LIMIT + 1}", "connection: close"), b"{")
    status, error = _error(answer)
    assert (status, error["code"], error["limit"]) == (413, "body_too_large", str(_LIMIT))


async def test_fifty_megabytes_in_chunks_are_refused_and_not_kept(house: House) -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = _head(house, "transfer-encoding: chunked", "connection: close")
    status, error = _error(await _talk(house, head, *([chunk] * 50), b"0\r\n\r\n"))
    assert (status, error["code"]) == (413, "body_too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100 * 1024


async def test_a_client_that_sends_fifty_megabytes_gets_to_read_the_refusal(house: House) -> None:
    answer = await house.client.post(_CHAT, content=b" " * (50 * 1024 * 1024))
    assert answer.status_code == 413
    assert (await house.client.get("/health")).status_code == 200


async def test_a_body_that_does_not_come_is_a_408(house: House) -> None:
    answer = await _talk(house, _head(house, "content-length: 100", "connection: close"), b'{"model"')
    status, error = _error(answer)
    assert (status, error["code"]) == (408, "body_timeout")


async def test_a_head_that_does_not_end_is_a_408(house: House) -> None:
    status, error = _error(await _talk(house, b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n"))
    assert (status, error["code"]) == (408, "body_timeout")


async def test_a_connection_that_says_nothing_is_closed(house: House) -> None:
    assert _error(await _talk(house))[0] == 408


async def test_a_bomb_of_headers_is_a_431(house: House) -> None:
    lines = [f"x-{number}: {'y' * 1000}" for number in range(200)]
    status, _ = _error(await _talk(house, _head(house, *lines)))
    assert status == 431


async def test_one_endless_header_is_a_431(house: House) -> None:
    status, _ = _error(await _talk(house, b"GET / HTTP/1.1\r\nx: ", b"y" * 1_000_000))
    assert status == 431


async def test_an_endless_trailer_ends_the_connection(house: House) -> None:
    body = msgspec.json.encode(chat())
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\nx: " + b"y" * 1_000_000
    answer = await _talk(house, _head(house, "transfer-encoding: chunked"), chunked)
    assert b" 200 " not in answer[:20]


async def test_bytes_that_are_no_http_are_a_400(house: House) -> None:
    status, error = _error(await _talk(house, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"))
    assert (status, error["code"]) == (400, "body_invalid")


async def test_both_lengths_at_once_are_refused(house: House) -> None:
    lines = ("content-length: 5", "transfer-encoding: chunked")
    status, _ = _error(await _talk(house, _head(house, *lines), b"0\r\n\r\nGET /"))
    assert status == 400


async def test_a_client_that_half_closes_before_its_body_is_whole_is_let_go(house: House) -> None:
    answer = await _talk(house, _head(house, "content-length: 100"), b'{"model"', half_close=True)
    assert answer == b""


async def test_an_encoded_body_is_a_415(house: House) -> None:
    answer = await house.client.post(_CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


async def test_expect_100_continue_is_answered_when_the_body_is_wanted(house: House) -> None:
    body = msgspec.json.encode(chat())
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(_head(house, f"content-length: {len(body)}", "expect: 100-continue", "connection: close"))
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_expect_100_continue_of_a_refused_request_gets_the_refusal_alone(house: House) -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
    )
    status, error = _error(await _talk(house, head))
    assert (status, error["code"]) == (401, "key_missing")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", _CHAT, 405, "POST"),
        ("HEAD", _CHAT, 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("POST", "/health", 405, "GET"),
        ("GET", "/", 404, None),
        ("POST", "/v1/embeddings", 404, None),
    ],
)
async def test_a_wrong_route_or_method_is_told(
    house: House, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = await house.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    if method != "HEAD":
        assert answer.json()["error"]["code"] in ("method_not_allowed", "route_unknown")


async def test_pipelined_requests_are_answered_in_their_order(house: House) -> None:
    body = msgspec.json.encode(chat(max_tokens=1))
    one = _head(house, f"content-length: {len(body)}") + body
    last = _head(house, f"content-length: {len(body)}", "connection: close") + body
    answer = await _talk(house, one + one + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3


async def test_an_upgrade_is_served_as_the_plain_request_that_it_also_is(house: House) -> None:
    lines = ("connection: upgrade, close", "upgrade: websocket")
    answer = await _talk(house, _head(house, *lines, method="GET", path="/v1/models"), half_close=False)
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_key_is_never_echoed(house: House) -> None:
    canary = "sk-sy-canary0123456789"
    answer = await house.client.post(_CHAT, json=chat(), headers={"authorization": f"Bearer {canary}"})
    assert answer.status_code == 401
    assert canary not in answer.text
    assert answer.json()["error"]["type"] == "invalid_api_key"
