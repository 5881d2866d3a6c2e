"""A receiver of webhooks and a mail server on the loopback: real sockets, answers as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

TAKES = b"HTTP/1.1 204 No Content\r\n\r\n"


def status(code: int, *, location: str = "") -> bytes:
    """An answer without a body."""
    more = f"Location: {location}\r\n" if location else ""
    return f"HTTP/1.1 {code} Because\r\n{more}Content-Length: 0\r\n\r\n".encode()


@dataclass(frozen=True)
class Got:
    """One request that came whole."""

    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """An HTTP server.   answers: what the next requests get, the last one for ever; None: silence."""

    port: int = 0
    answers: list[bytes | None] = field(default_factory=lambda: [TAKES])
    got: list[Got] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/hook?room=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.got.append(Got(head[0].split(" ")[1], headers, body))
        self.came.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await self.done.wait()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()


@dataclass
class MailSink:
    """An SMTP server that takes mail without TLS.   replies: what a command gets instead of what is usual."""

    port: int = 0
    replies: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    mails: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        usual = {"EHLO": "250 sink", "DATA": "354 go on", "QUIT": "221 bye"}
        writer.write(b"220 sink\r\n")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.said.append(line)
            verb = line.split(" ")[0].upper()
            reply = self.replies.get(verb, usual.get(verb, "250 fine"))
            writer.write(f"{reply}\r\n".encode())
            if reply.startswith("354"):
                self.mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
                writer.write(b"250 taken\r\n")
        writer.close()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "localhost", 0, family=2)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        receiver.done.set()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def open_mail_sink() -> AsyncIterator[MailSink]:
    sink = MailSink()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield sink
    finally:
        server.close()
        await server.wait_closed()
