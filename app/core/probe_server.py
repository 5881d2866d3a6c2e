"""The small HTTP listener of each process for `/health` and `/metrics`, apart from what tenants reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

_READ_TIMEOUT_S = 5.0
_MAX_HEAD = 8192

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Returns (ready, facts); facts are shown as JSON."""


class ProbeServer:
    """Serves `/health` (200 when ready, else 503) and `/metrics` (Prometheus text) until closed."""

    def __init__(self, *, health: Health, metrics: Callable[[], bytes]) -> None:
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 means that this process has no such listener."""
        if port:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_TIMEOUT_S)
            writer.write(self._answer(head.split(b" ", 2)))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a broken probe is the prober's matter
        finally:
            writer.close()

    def _answer(self, request: list[bytes]) -> bytes:
        method, path = (*request, b"", b"")[:2]
        if method != b"GET":
            return _response(405, b"only GET is served here\n")
        if path == b"/metrics":
            return _response(200, self._metrics(), kind=b"text/plain; version=0.0.4; charset=utf-8")
        if path == b"/health":
            ready, facts = self._health()
            body = msgspec.json.encode({"status": "ok" if ready else "unavailable", **facts})
            return _response(200 if ready else 503, body, kind=b"application/json")
        return _response(404, b"only /health and /metrics are served here\n")


def _response(status: int, body: bytes, *, kind: bytes = b"text/plain; charset=utf-8") -> bytes:
    phrase = {200: b"OK", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}[status]
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        % (status, phrase, kind, len(body))
    ) + body
