"""Engines that answer from a script: the scheduler's port `EngineClient`, played at its callbacks.

An engine outlives gateways. It notes what it worked on and what it told of it with each piece that a
gateway has read: that is the truth which events are compared with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from app.core.errors import ConnectFailed, EngineError, FirstTokenTimeout, StreamBroken
from scheduler.simulator import wire
from scheduler.transport.model import Deadlines, EngineRequest, Target
from scheduler.transport.ports import Sink
from tests.simulation.loop import Process, SimLoop
from tests.simulation.trace import Trace

SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
_FATES = (
    ("good", 56), ("die", 6), ("stall", 4), ("error_frame", 6), ("no_usage", 6), ("double_usage", 4),
    ("unreachable", 5), ("busy", 4), ("broken", 4), ("refuse", 4), ("silent", 3),
)  # fmt: skip


@dataclass
class Work:
    """One attempt at one engine.   told: the last usage in what the gateway read, (prompt, cached, output).

    worked: (prompt, output) tokens computed.   final: the engine's last word was read.
    """

    request_id: str
    backend: str
    fate: str
    prompt: int
    cached: int
    tokens: int
    choices: int
    told: tuple[int, int, int] | None = None
    worked: tuple[int, int] = (0, 0)
    final: bool = False
    aborted: bool = False


@dataclass
class Piece:
    """Some bytes of an answer, and what they tell."""

    data: bytes
    after_s: float
    output: int
    told: tuple[int, int, int] | None = None
    final: bool = False


@dataclass
class Engines:
    """All engines of a run.   works: every attempt, in order."""

    loop: SimLoop
    rng: Random
    trace: Trace
    calm: bool = False
    works: list[Work] = field(default_factory=list)

    def fate(self) -> str:
        if self.calm:
            return "good"
        names, weights = zip(*_FATES, strict=True)
        return str(self.rng.choices(names, weights)[0])


class ScriptedClient:
    """The `EngineClient` of one gateway process."""

    def __init__(self, engines: Engines, process: Process) -> None:
        self._engines = engines
        self._process = process
        self._open: dict[Exchange, None] = {}
        process.on_death.append(self._die)

    def send(self, target: Target, request: EngineRequest, *, deadlines: Deadlines, sink: Sink) -> Exchange:
        exchange = Exchange(
            self._engines, self._process, target=target, request=request, deadlines=deadlines, sink=sink
        )
        self._open[exchange] = None
        exchange.start()
        return exchange

    def _die(self) -> None:
        for exchange in self._open:
            exchange.cancel()


class Exchange:
    """One request at one engine, to its end."""

    def __init__(
        self,
        engines: Engines,
        process: Process,
        *,
        target: Target,
        request: EngineRequest,
        deadlines: Deadlines,
        sink: Sink,
    ) -> None:
        self._engines = engines
        self._process = process
        self._path = request.path
        self._sink = sink
        self._deadlines = deadlines
        self._over = False
        self._paused = False
        self._kept: deque[Piece] = deque()
        self._began = False
        self._asked: dict[str, Any] = msgspec.json.decode(request.body)
        request_id = next((value for name, value in request.headers if name == b"x-request-id"), b"")
        self.work = self._new_work(target.host.removesuffix(".test"), request_id.decode())

    def start(self) -> None:
        loop = self._engines.loop
        if self._path == "/tokenize":
            self._process.post_later(0.005, self._count)
            return
        self._engines.works.append(self.work)
        self._engines.trace.note(
            self.work.backend, "got", self.work.request_id[-6:], self.work.fate, self.work.tokens
        )
        self._process.post_later(self._deadlines.total_s, self._expire, "total deadline")
        loop.world.spawn(self._answer(), name="engine")

    def cancel(self) -> None:
        """The gateway closes the connection. No callback follows."""
        if not self._over:
            self._over = self.work.aborted = True
            self._engines.trace.note(self.work.backend, "aborted", self.work.request_id[-6:])

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._process.post(self._read_on)

    def _new_work(self, backend: str, request_id: str) -> Work:
        rng, asked = self._engines.rng, self._asked
        prompt = _tokens_of(asked)
        tokens = rng.randint(1, asked.get("max_tokens") or 16)
        return Work(
            request_id,
            backend,
            fate=self._engines.fate(),
            prompt=prompt,
            cached=rng.choice((0, 0, rng.randint(0, prompt))),
            tokens=tokens,
            choices=asked.get("n") or 1,
        )

    async def _answer(self) -> None:
        """The engine's own course, in its own time."""
        work, rng, post = self.work, self._engines.rng, self._process.post
        await asyncio.sleep(rng.random() * 0.01)
        if work.fate == "unreachable":
            post(self._fail, ConnectFailed("The engine could not be reached."))
        elif work.fate in ("busy", "broken", "refuse"):
            post(self._whole, *_REFUSALS[work.fate])
        elif work.fate != "silent":
            await self._generate()
        if not self._began:
            await asyncio.sleep(self._deadlines.first_byte_s)
            if not self._began:
                post(self._fail, FirstTokenTimeout("The engine did not start to answer in time."))

    async def _generate(self) -> None:
        work, post = self.work, self._process.post
        streamed = bool(self._asked.get("stream"))
        pieces = list(self._pieces() if streamed else self._whole_answer())
        struck = (
            self._engines.rng.randint(0, len(pieces))
            if work.fate in ("die", "stall", "error_frame")
            else None
        )
        if streamed:
            post(self._head, 200, SSE)
        for number, piece in enumerate(pieces):
            if number == struck:
                await self._strike()
                return
            await asyncio.sleep(piece.after_s)
            if work.aborted or self._process.dead:
                return
            work.worked = (work.prompt, max(work.worked[1], piece.output))
            if not streamed:
                post(self._head, 200, JSON)
            post(self._deliver, piece)
        post(self._end)

    async def _strike(self) -> None:
        work, post = self.work, self._process.post
        if work.fate == "die":
            post(self._fail, StreamBroken("The engine's answer ended before its end."))
        elif work.fate == "error_frame" and self._asked.get("stream"):
            post(self._deliver, Piece(wire.error_frame() + wire.DONE, 0, 0))
            post(self._end)
        elif self._began:
            await asyncio.sleep(self._deadlines.idle_s)
            post(self._expire, "idle deadline")

    def _pieces(self) -> Iterator[Piece]:
        """A stream as vLLM writes it, several tokens a piece, usage where it was asked for."""
        work, rng = self.work, self._engines.rng
        options = self._asked.get("stream_options") or {}
        says = work.fate != "no_usage"
        continuous = bool(options.get("continuous_usage_stats")) and says
        answer, pace = self._wire_answer(), rng.choice((0.002, 0.1, 0.3, 0.4))
        done, size = 0, rng.choice((1, 1, 3))
        while done < work.tokens:
            count = min(size, work.tokens - done)
            for index in range(work.choices):
                data = wire.token_chunk(answer, index, first=done, count=count, continuous=continuous)
                output = done * work.choices + count * (index + 1)
                told = (work.prompt, 0, output) if continuous else None
                yield Piece(data, pace * rng.random() if not index else 0, output, told)
            done += count
        last = b""
        if says and options.get("include_usage"):
            last = wire.usage_chunk(answer) * (2 if work.fate == "double_usage" else 1)
        whole = (work.prompt, work.cached, work.tokens * work.choices) if last else None
        yield Piece(last + wire.DONE, 0.001, work.tokens * work.choices, whole, final=True)

    def _whole_answer(self) -> Iterator[Piece]:
        work = self.work
        says = work.fate != "no_usage"
        whole = (work.prompt, work.cached, work.tokens * work.choices) if says else None
        data = wire.json_body(self._wire_answer(), usage=says)
        after_s = work.tokens * self._engines.rng.choice((0.001, 0.05))
        yield Piece(data, after_s, work.tokens * work.choices, whole, final=True)

    def _wire_answer(self) -> wire.Answer:
        work = self.work
        return wire.Answer(
            request_id=f"chatcmpl-{work.request_id[-6:]}",
            chat="messages" in self._asked,
            model=self._asked["model"],
            created=1,
            choices=work.choices,
            prompt_tokens=work.prompt,
            tokens=work.tokens,
            stops=work.tokens % 2 == 0,
            cached=work.cached,
        )

    # In the gateway's process.

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._over:
            self._sink.head(status, headers)

    def _deliver(self, piece: Piece) -> None:
        self._kept.append(piece)
        self._read_on()

    def _read_on(self) -> None:
        while self._kept and not self._paused and not self._over:
            piece = self._kept.popleft()
            self._began = True
            if piece.told is not None:
                self.work.told = piece.told
            self.work.final = self.work.final or piece.final
            self._sink.piece(piece.data)

    def _end(self) -> None:
        if self._kept and not self._over:
            self._process.post_later(0.01, self._end)
        elif not self._over:
            self._over = True
            self._sink.end()

    def _whole(self, status: int, body: bytes) -> None:
        self._began = True
        if not self._over:
            self._sink.head(status, JSON)
        if not self._over:
            self._sink.piece(body)
        if not self._over:
            self._over = True
            self._sink.end()

    def _fail(self, error: EngineError) -> None:
        self._began = True
        if not self._over:
            self._over = True
            self._sink.error(error)

    def _expire(self, reason: str) -> None:
        if not self._over:
            self.work.aborted = True
            self._fail(StreamBroken("The engine's answer ended before its end.", reason=reason))

    def _count(self) -> None:
        self._whole(200, msgspec.json.encode({"count": _tokens_of(self._asked), "tokens": []}))


def _tokens_of(asked: Mapping[str, Any]) -> int:
    """How many tokens a prompt is: drawn, and the same number whenever it is counted."""
    text = "".join(message["content"] for message in asked.get("messages", ())) + asked.get("prompt", "")
    return Random(f"tokens:{text}").randint(1, max(len(text) // 3, 1))


_REFUSALS = {
    "busy": (503, wire.error_body(wire.BUSY, kind="ServiceUnavailable", status=503)),
    "broken": (500, wire.error_body(wire.CORE_DIED, kind="InternalServerError", status=500)),
    "refuse": (400, wire.error_body("This is not valid.", kind="BadRequestError", status=400)),
}
