"""A client that hangs up right after the k-th chunk of a streamed answer, and remembers what it saw."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httptools

PATIENCE_S = 60.0
_SAYING = ("content", "reasoning", "reasoning_content", "tool_calls")


@dataclass(slots=True)
class Seen:
    """What of an answer reached the client.

    chunks: events with a choice, the one that only names the role included.   deltas: those of them that
    said something.   told: completion tokens by the last usage in a chunk, None if none had one.
    """

    status: int = 0
    request_id: str = ""
    chunks: int = 0
    deltas: int = 0
    told: int | None = None
    usage: dict[str, Any] | None = None
    is_whole: bool = False
    error: dict[str, Any] | None = None
    body: bytes = b""
    _tail: bytes = field(default=b"", repr=False)

    def take(self, data: bytes) -> None:
        """Take bytes of the body, cut anywhere."""
        self.body += data
        *events, self._tail = (self._tail + data).split(b"\n\n")
        for event in events:
            self._event(event.partition(b"data:")[2].strip())

    def _event(self, data: bytes) -> None:
        if not data or data == b"[DONE]":
            self.is_whole = self.is_whole or data == b"[DONE]"
            return
        chunk = json.loads(data)
        self.error = chunk.get("error") or self.error
        choices = chunk.get("choices") or []
        self.chunks += bool(choices)
        self.deltas += any(_says(choice) for choice in choices)
        if usage := chunk.get("usage"):
            self.usage, self.told = usage, usage["completion_tokens"]


def _says(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in _SAYING)


class _Reader:
    """httptools' callbacks, into a `Seen`."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._parser = httptools.HttpResponseParser(self)
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._seen.request_id = value.decode()

    def on_headers_complete(self) -> None:
        self._seen.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._seen.take(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def read_until(wire: bytes, *, host: str, port: int, chunks: int | None) -> Seen:
    """Send a request and read until its answer has so many chunks, then close the connection at once.

    chunks: None reads to the end.   The answer may bring more chunks in one read than were waited for.
    """
    seen = Seen()
    incoming, outgoing = await asyncio.open_connection(host, port)
    try:
        outgoing.write(wire)
        async with asyncio.timeout(PATIENCE_S):
            await _read(incoming, seen, chunks=chunks)
    finally:
        outgoing.transport.abort()
    return seen


async def _read(incoming: asyncio.StreamReader, seen: Seen, *, chunks: int | None) -> None:
    reader = _Reader(seen)
    while not reader.is_complete and (chunks is None or seen.chunks < chunks):
        data = await incoming.read(65_536)
        if not data:
            return
        reader.feed(data)
