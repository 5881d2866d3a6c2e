"""A small ASGI application for the tests against uvicorn, which is also what serves vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
aborted: list[str] = []


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path == "/early":
        await _answer(send, status=413, body=b"too large")
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if path == "/stream":
        await _stream(send)
    elif path == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        aborted.append(path)
    elif path == "/aborted":
        await _answer(send, status=200, body=b"%d" % len(aborted))
    elif path == "/die":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        raise RuntimeError("the application dies within its answer")
    else:
        await _answer(send, status=200, body=body)


async def _answer(send: Callable[[Message], Awaitable[None]], *, status: int, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Callable[[Message], Awaitable[None]]) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    for number in range(50):
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})
