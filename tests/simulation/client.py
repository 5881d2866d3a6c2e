"""Clients that ask, read at their own pace, and leave when they like. What one has received is its truth."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from app.gateway.protocol import EXTENSION
from tests.simulation.loop import Process, SimLoop
from tests.simulation.trace import Trace

_WINDOW_BYTES = 2000
"""What fits between a gateway and a client that does not read."""


@dataclass(frozen=True)
class Wish:
    """One call that somebody will make.

    leaves_s: after how long the client hangs up, None: never.   leaves_after: or after so many bytes.
    read_s: time it takes for each piece.   body_s: time over which its request arrives.
    task, task_budget: what its headers say of a task.
    """

    at_s: float
    gateway: int
    secret: str
    path: str
    body: dict[str, Any]
    leaves_s: float | None = None
    leaves_after: int | None = None
    read_s: float = 0.0
    body_s: float = 0.0
    task: str | None = None
    task_budget: str | None = None

    @property
    def task_headers(self) -> list[tuple[bytes, bytes]]:
        said = ((b"x-steelyard-task", self.task), (b"x-steelyard-task-budget", self.task_budget))
        return [(name, value.encode()) for name, value in said if value is not None]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Call:
    """A call and what came of it.   ended: the answer came to its end.   cut: the connection broke."""

    number: int
    wish: Wish
    request_id: str | None = None
    status: int | None = None
    received: list[bytes] = field(default_factory=list)
    sent_ms: int = 0
    ended: bool = False
    left: bool = False
    cut: bool = False
    refused_connection: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.received)

    @property
    def delivered(self) -> bool:
        """True if the client has all of a good answer."""
        if not self.ended or self.status != 200:
            return False
        return not self.wish.streamed or b"data: [DONE]" in self.received[-1]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage that the client was told, if any."""
        if not self.delivered:
            return None
        if not self.wish.streamed:
            told: dict[str, Any] | None = msgspec.json.decode(self.body).get("usage")
            return told
        chunks = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        told_all = [usage for chunk in chunks if (usage := msgspec.json.decode(chunk).get("usage"))]
        return told_all[-1] if told_all else None


class Connection:
    """A client's connection at a gateway, as `GatewayProtocol` shows it to the route."""

    def __init__(self, loop: SimLoop, call: Call, *, process: Process, rng: Random, trace: Trace) -> None:
        self.on_gone: Any = None
        self.lost = False
        self.body_arrived = call.wish.body_s == 0
        self._loop = loop
        self._call = call
        self._process = process
        self._rng = rng
        self._trace = trace
        self._window = 0
        self._room: asyncio.Future[None] | None = None
        self._arrives_at = 0.0
        process.on_death.append(self._gateway_died)

    def scope(self) -> dict[str, Any]:
        wish = self._call.wish
        return {
            "type": "http",
            "method": "POST",
            "path": wish.path,
            "headers": [
                (b"authorization", f"Bearer {wish.secret}".encode()),
                (b"content-type", b"application/json"),
                *wish.task_headers,
            ],
            "extensions": {EXTENSION: self},
        }

    def linger(self) -> None:
        """The rest of a refused body is read and thrown away."""

    async def receive(self) -> dict[str, Any]:
        if not self.body_arrived:
            await asyncio.sleep(self._call.wish.body_s)
            self.body_arrived = True
        if self.lost:
            return {"type": "http.disconnect"}
        body = msgspec.json.encode(self._call.wish.body)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        """To the kernel: from there it reaches the client, whatever becomes of the gateway."""
        if self.lost:
            return
        self._arrives_at = max(self._arrives_at, self._loop.time()) + self._rng.random() * 0.002
        self._window += len(message.get("body", b""))
        delay_s = self._arrives_at - self._loop.time()
        self._loop.world.post_later(delay_s, self._arrive, message)
        if self._window > _WINDOW_BYTES:
            self._room = self._loop.create_future()
            await self._room

    def leave(self) -> None:
        """The client hangs up."""
        if not self._call.ended and not self._call.cut:
            self._call.left = True
            self._trace.note("client", "left", self._call.number)
            self._process.post(self._lose)

    def _arrive(self, message: dict[str, Any]) -> None:
        call = self._call
        if call.left:
            return
        if message["type"] == "http.response.start":
            call.status = message["status"]
            head = dict(message["headers"])
            call.request_id = head.get(b"x-request-id", b"").decode() or None
            return
        call.received.append(message["body"])
        if call.wish.read_s:
            self._arrives_at = max(self._arrives_at, self._loop.time() + call.wish.read_s)
            self._loop.world.post_later(call.wish.read_s, self._read, len(message["body"]))
        else:
            self._read(len(message["body"]))
        if not message["more_body"]:
            call.ended = True
            self._trace.note("client", "has", call.number, call.status, len(call.body))
        elif call.wish.leaves_after is not None and len(call.body) > call.wish.leaves_after:
            self.leave()

    def _read(self, size: int) -> None:
        self._window -= size
        if self._room is not None and self._window <= _WINDOW_BYTES:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    def _lose(self) -> None:
        self.lost = True
        self._read(0 if self._room is None else self._window)
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    def _gateway_died(self) -> None:
        self._loop.world.post_later(max(self._arrives_at - self._loop.time(), 0) + 0.01, self._find_out)

    def _find_out(self) -> None:
        if not self._call.ended and not self._call.left:
            self._call.cut = True
