"""Engines that tell their counters, each in its own way."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PAGE = b'vllm:prompt_tokens_total{model_name="m"} 7.0\nvllm:generation_tokens_total{model_name="m"} 3.0\n'
PACKED = gzip.compress(gzip.compress(PAGE * 10_000))
MANY_RANKS = b'vllm:prompt_tokens_total{model_name="m"} 9007199254740991\n' * 1100
"""Each counts what a float still can; together they are beyond 64 bits."""


@asynccontextmanager
async def serve_pages() -> AsyncIterator[str]:
    """An address: below `/well` a page, below `/moved` a redirect to it, and worse ones below other paths."""
    silent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        if path.startswith("/silent"):
            await silent.wait()
        answers = {
            "/well/metrics": (b"200 OK", b"process-start-time-unix: 42\r\n", PAGE),
            "/moved/metrics": (b"302 Found", b"location: /well/metrics\r\n", b""),
            "/endless/metrics": (b"200 OK", b"", b"# more\n" * (1 << 20)),
            "/packed/metrics": (b"200 OK", b"content-encoding: gzip, gzip\r\n", PACKED),
            "/monstrous/metrics": (b"200 OK", b"", b"process_start_time_seconds 4\x002\n" + MANY_RANKS),
        }
        status, head, body = answers.get(path, (b"404 Not Found", b"", b""))
        writer.write(b"HTTP/1.1 %b\r\nconnection: close\r\n%b\r\n%b" % (status, head, body))
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
