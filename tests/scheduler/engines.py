"""Simulated engines on real sockets, and a way to call them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.core.errors import EngineError, Rejected
from scheduler.registry.model import BackendSpec
from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import Options
from scheduler.transport.client import EngineClient
from scheduler.transport.model import Deadlines, EngineRequest, parse_target

PATIENT = Deadlines(connect_s=5, first_byte_s=10, idle_s=10, total_s=30)
HASTY = Deadlines(connect_s=0.5, first_byte_s=0.2, idle_s=0.2, total_s=30)


@dataclass
class Answer:
    """A sink, of the transport or of a dispatch, that can be awaited."""

    status: int | None = None
    backend: str | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    error_found: EngineError | Rejected | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def head(
        self, status: int, headers: list[tuple[bytes, bytes]], backend: BackendSpec | None = None
    ) -> None:
        self.status, self.headers = status, dict(headers)
        self.backend = backend.backend_id if backend else None

    def piece(self, data: bytes) -> None:
        self.body += data
        self.begun.set()

    def end(self) -> None:
        assert not self.over.is_set()
        self.over.set()

    def error(self, error: EngineError | Rejected) -> None:
        assert not self.over.is_set()
        self.error_found = error
        self.over.set()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream; its [DONE] as a string."""
        found = [e.removeprefix(b"data: ") for e in self.body.split(b"\n\n") if e]
        return [e.decode() if e == b"[DONE]" else msgspec.json.decode(e) for e in found]


def chat(*, knobs: str = "", request_id: str = "", **fields: Any) -> EngineRequest:
    """A chat request, with knobs for the stand-in."""
    body = {"messages": [{"role": "user", "content": "What does it weigh?"}], "max_tokens": 8, **fields}
    headers = ((b"content-type", b"application/json"), (b"x-simulator", knobs.encode()))
    if request_id:
        headers += ((b"x-request-id", request_id.encode()),)
    return EngineRequest("POST", "/v1/chat/completions", headers, msgspec.json.encode(body))


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[SimulatedEngine, Callable[..., Awaitable[Answer]]]]:
    """An engine of these options, and a function that calls it and waits for the end."""
    engine = SimulatedEngine(Options(**options))
    await engine.start()
    client = EngineClient()

    async def ask(request: EngineRequest, *, deadlines: Deadlines = PATIENT) -> Answer:
        answer = Answer()
        client.send(parse_target(engine.base_url), request, deadlines=deadlines, sink=answer)
        await answer.over.wait()
        return answer

    try:
        yield engine, ask
    finally:
        await client.close()
        await engine.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait, for five seconds at most, until the condition holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)
