"""Both ends of an exchange: an engine scripted to the byte, and a sink that writes down what it hears."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext

from app.core.errors import EngineError
from scheduler.transport.model import Deadlines, EngineRequest, Target

PATIENT = Deadlines(connect_s=10, first_byte_s=10, idle_s=10, total_s=30)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def post(body: bytes = b"{}", *, path: str = "/v1/completions") -> EngineRequest:
    return EngineRequest("POST", path, ((b"content-type", b"application/json"),), body)


@dataclass
class Recorder:
    """A sink that insists on the order and the once-ness that `Sink` promises."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    failure: EngineError | None = None
    ended: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.status == 0
        assert not self.over.is_set()
        self.status, self.headers = status, headers
        self.heard.set()

    def piece(self, data: bytes) -> None:
        assert self.status
        assert data
        assert not self.over.is_set()
        self.pieces.append(data)
        self.heard.set()

    def end(self) -> None:
        assert self.status
        assert not self.over.is_set()
        self.ended = True
        self.over.set()

    def error(self, error: EngineError) -> None:
        assert not self.over.is_set()
        self.failure = error
        self.over.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def answer(self) -> bytes:
        """The body of an exchange that must end well."""
        await self.over.wait()
        assert self.ended, self.failure and self.failure.facts
        return self.body

    async def broken(self) -> EngineError:
        """The error of an exchange that must fail."""
        await self.over.wait()
        assert self.failure is not None, (self.status, self.body[:100])
        return self.failure


class Peer:
    """One connection as the engine sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return head, await self.reader.readexactly(int(size[0].split(b":")[1])) if size else b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with a TCP reset."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Return once the client has closed the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Engine:
    """What a scripted engine has seen so far."""

    target: Target
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def engine(
    script: Script, *, host: str = "127.0.0.1", ssl: SSLContext | None = None, tls: bool = False
) -> AsyncIterator[Engine]:
    """An engine that plays `script` on every connection and then closes it. Its own errors fail the test."""
    running: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await script(Peer(reader, writer, number=seen.connections))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            seen.failures.append(error)
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_server(play, host, 0, ssl=ssl)
    port = server.sockets[0].getsockname()[1]
    seen = Engine(Target(host, port, tls=tls))
    try:
        yield seen
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.wait_for(server.wait_closed(), 10)
    assert seen.failures == []


def answering(*responses: bytes) -> Script:
    """A script that reads a request before each of these raw responses, and then closes."""

    async def script(peer: Peer) -> None:
        for response in responses:
            await peer.request()
            await peer.send(response)

    return script


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; the test's time limit is the bound."""
    while not condition():
        await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
