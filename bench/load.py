"""A load generator that checks every body: keep-alive connections in a closed loop, on raw protocols.

It speaks just enough HTTP/1.1 to cost little; what is measured is the CPU of the process under test,
not the generator's own speed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import httptools

Check = Callable[[int, bytes], bool]
PATIENCE_S = 300.0
"""A run that takes longer hangs: it fails."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One kind of request: raw bytes to send, and whether an answer is right."""

    wire: bytes
    check: Check


@dataclass(slots=True)
class Tally:
    """What came of a run: answers, chunks of bodies, faults, latencies in seconds."""

    answers: int = 0
    pieces: int = 0
    faults: int = 0
    latencies_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def quantile_ms(self, q: float, values: list[float] | None = None) -> float:
        """The q-quantile of latencies (or of `values`), in milliseconds."""
        ordered = sorted(self.latencies_s if values is None else values)
        return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 3) if ordered else 0.0


def post(*, host: str, path: str, key: str, body: bytes) -> bytes:
    """The bytes of a JSON POST on a keep-alive connection."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """One client: sends a shot, waits for its whole answer, sends the next while any are left."""

    def __init__(
        self, shot: Shot, *, take: Callable[[], bool], tally: Tally, done: asyncio.Future[None]
    ) -> None:
        self._shot = shot
        self._take = take
        self._tally = tally
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._next()

    def _next(self) -> None:
        if not self._take():
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._sent_at = time.perf_counter()
        self._transport.write(self._shot.wire)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._tally.first_byte_s.append(time.perf_counter() - self._sent_at)
        self._body.append(body)

    def on_message_complete(self) -> None:
        tally = self._tally
        tally.answers += 1
        tally.pieces += len(self._body)
        tally.latencies_s.append(time.perf_counter() - self._sent_at)
        tally.faults += not self._shot.check(self._parser.get_status_code(), b"".join(self._body))
        asyncio.get_running_loop().call_soon(self._next)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._tally.faults += 1
        if not self._done.done():
            self._done.set_result(None)


async def closed_loop(shot: Shot, *, host: str, port: int, connections: int, requests: int) -> Tally:
    """Send `requests` over `connections` at once, each waiting for its answer; returns the tally."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    left = requests

    def take() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    started = time.perf_counter()
    dones: list[asyncio.Future[None]] = [loop.create_future() for _ in range(connections)]
    for done in dones:
        connect = partial(_Connection, shot, take=take, tally=tally, done=done)
        await loop.create_connection(connect, host, port)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*dones)
    tally.wall_s = time.perf_counter() - started
    return tally
