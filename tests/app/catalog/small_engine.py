"""An engine that speaks just enough HTTP to be asked what it serves."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def serve_models(*names: str) -> AsyncIterator[str]:
    """The address of an engine that serves these.

    Below `/odd` it answers what is no list, below `/endless` a list that never ends, below `/packed` one that
    is packed, below `/silent` nothing.
    """
    listing = json.dumps({"data": [{"id": name} for name in names]}).encode()
    answers = {"/health": b"{}", "/v1/models": listing, "/odd/health": b"{}", "/odd/v1/models": b"[]"}
    answers |= {"/endless/health": b"{}", "/endless/v1/models": b"[" * (1 << 22)}
    answers |= {"/packed/health": b"{}", "/packed/v1/models": gzip.compress(listing)}
    silent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        if path.startswith("/silent"):
            await silent.wait()
        body = answers.get(path, b"")
        head = b"HTTP/1.1 200 OK" if path in answers else b"HTTP/1.1 404 Not Found"
        head += b"\r\ncontent-encoding: gzip" if path == "/packed/v1/models" else b""
        writer.write(head + b"\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        silent.set()
        server.close()
        await server.wait_closed()
