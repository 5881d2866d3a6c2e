"""Clients that want more than there is: callers in a closed loop on raw connections, who read refusals."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

from bench import load
from tests.app.gateway.house import MODEL

_PATH = "/v1/chat/completions"
_PATIENCE_S = 30.0
_LONGEST_PAUSE_S = 0.3
"""Clients come again sooner than they are told: so there is always somebody who wants what gets free."""
_GONE, _HUNG = -1, -2


@dataclass(frozen=True, slots=True)
class Wish:
    """A request: the most that it may write, how much it will, and after which time (else the engine's)."""

    secret: str
    max_tokens: int
    tokens: int
    streamed: bool
    headers: tuple[tuple[str, str], ...] = ()
    ttft_ms: int | None = None

    def wire(self) -> bytes:
        """The bytes of the request."""
        knobs = f"tokens={self.tokens:04}" + ("" if self.ttft_ms is None else f" ttft_ms={self.ttft_ms:04}")
        text = f"[simulator {knobs}] Weigh every token once."
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "stream": self.streamed,
        }
        raw = load.post(host="127.0.0.1", path=_PATH, key=self.secret, body=msgspec.json.encode(body))
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers).encode()
        return raw.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n", 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """status −1: the connection was lost; −2: no answer came in half a minute.   error: of a refusal."""

    status: int
    error: dict[str, Any]

    @property
    def code(self) -> str:
        if self.status in (_GONE, _HUNG):
            return "gone" if self.status == _GONE else "hung"
        return str(self.error.get("code", ""))


class _Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, wire: bytes) -> asyncio.Future[Answer]:
        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(wire)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        error = {} if status == 200 else msgspec.json.decode(self._body)["error"]
        self._end(Answer(status, error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._end(Answer(_GONE, {}))

    def _end(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


class Caller:
    """One client of the gateways on these ports, at its own first; at the next if that is gone."""

    def __init__(self, ports: list[int], *, first: int) -> None:
        self._ports = ports
        self._at = first
        self._connection: _Connection | None = None

    async def ask(self, wish: Wish) -> Answer:
        """The answer to a request."""
        connection = self._connection
        if connection is None or connection.transport is None or connection.transport.is_closing():
            connection = self._connection = await self._connect()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await connection.ask(wish.wire())
        except TimeoutError:
            self.close()
            return Answer(_HUNG, {"at": self._ports[self._at % len(self._ports)]})

    def close(self) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        for _ in self._ports:
            try:
                port = self._ports[self._at % len(self._ports)]
                return (await loop.create_connection(_Connection, "127.0.0.1", port))[1]
            except OSError:
                self._at += 1
        raise ConnectionError("no gateway listens")


@dataclass
class Crowd:
    """Callers who share a list of wishes, each of which is asked for until it is served or hopeless.

    codes: of all answers, `200` or the code of the error.   served: wishes that came true.
    """

    ports: list[int]
    callers: int
    wishes: Iterator[Wish]
    codes: Counter[str] = field(default_factory=Counter)
    served: int = 0
    wall_s: float = 0.0
    on_served: Callable[[int], None] | None = None

    async def run(self, *, seconds: float) -> None:
        """Ask until nothing is wished for any more, or time is up."""
        began = time.monotonic()
        end = began + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(self.callers):
                group.create_task(self._buy(Caller(self.ports, first=number), end=end))
        self.wall_s = time.monotonic() - began

    async def _buy(self, caller: Caller, *, end: float) -> None:
        try:
            for wish in self.wishes:
                while time.monotonic() < end and not await self._try(caller, wish):
                    pass
                if time.monotonic() >= end:
                    return
        finally:
            caller.close()

    async def _try(self, caller: Caller, wish: Wish) -> bool:
        """True if there is nothing more to hope for."""
        answer = await caller.ask(wish)
        self.codes[answer.code or str(answer.status)] += 1
        if answer.status == 200:
            self.served += 1
            if self.on_served is not None:
                self.on_served(self.served)
            return True
        if answer.status in (_GONE, _HUNG):
            return True  # nobody knows what became of it
        wait_s = answer.error.get("retry_after_s")
        if wait_s is None:
            return True
        await asyncio.sleep(min(wait_s, _LONGEST_PAUSE_S) * random.uniform(0.5, 1))
        return False


def wishes_of(draw: random.Random, *, secrets: Callable[[], str], count: int, most: int) -> Iterator[Wish]:
    """Requests with random `max_tokens`, a half of which write less than they may."""
    for _ in range(count):
        max_tokens = draw.randint(1, most)
        tokens = max_tokens if draw.random() < 0.5 else draw.randint(1, max_tokens)
        yield Wish(secrets(), max_tokens, tokens, draw.random() < 0.3)
