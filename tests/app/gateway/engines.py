"""A hand-written engine for a test: answers each path with JSON, as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

Answering = Callable[[str, dict[str, Any]], dict[str, Any] | None]
"""(path, body) → the JSON to answer with, or None for a 404."""


@asynccontextmanager
async def serve(answer: Answering) -> AsyncIterator[str]:
    """The base URL of an engine that answers so; one request a connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode()
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        found = answer(path, msgspec.json.decode(await reader.readexactly(length) or b"{}"))
        body = msgspec.json.encode(found)
        status = b"404 Not Found" if found is None else b"200 OK"
        writer.write(
            b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
