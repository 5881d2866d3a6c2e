"""An engine that says what a test wrote down, chunk by chunk, and then waits for whoever listens to leave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

_ASKED = re.compile(rb"script:(\w+)")
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n"
Tokenize = Callable[[str, dict[str, Any]], dict[str, Any] | None]


class Ending(StrEnum):
    """What the engine does after its last chunk: keep the answer open, end it in order, or cut it off."""

    HOLD = "hold"
    END = "end"
    CUT = "cut"


@dataclass(frozen=True)
class Script:
    """An answer.   events: of a stream, one after the other.   whole: a JSON body instead of a stream.

    waits: it begins when the engine is released.
    """

    events: Sequence[bytes] = ()
    ending: Ending = Ending.END
    whole: bytes | None = None
    status: bytes = b"200 OK"
    waits: bool = False


@dataclass
class Replay:
    """A listening engine.   scripts: by the name that a request's text says as `script:name`.

    tokenize: its answers to the routes of a tokenizer.   played: names of scripts whose last chunk was sent.
    abandoned: those whose listener left.   waiting: requests that came for a script that waits.
    """

    scripts: dict[str, Script] = field(default_factory=dict)
    tokenize: Tokenize = lambda _path, _asked: None
    base_url: str = ""
    probes: int = 0
    played: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    waiting: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def until_probed(self) -> None:
        """Wait until a gateway has found this engine."""
        async with asyncio.timeout(10):
            while not self.probes:
                await asyncio.sleep(0.005)

    async def until_played(self, name: str) -> None:
        """Wait until all of a script is on its way."""
        async with asyncio.timeout(10):
            while name not in self.played:
                await asyncio.sleep(0.001)

    async def until_abandoned(self, name: str) -> None:
        """Wait until the listener of a held answer has left."""
        async with asyncio.timeout(10):
            while name not in self.abandoned:
                await asyncio.sleep(0.005)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            await self._answer(head.split(b" ", 2)[1].decode(), body, reader=reader, writer=writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, path: str, body: bytes, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path.startswith(("/v1/chat", "/v1/completions")):
            found = _ASKED.search(body)
            assert found, "a request of these tests names its script"
            await self._play(found[1].decode(), reader=reader, writer=writer)
            return
        self.probes += path == "/health"
        answer = {} if path == "/health" else self.tokenize(path, msgspec.json.decode(body or b"{}"))
        status = b"404 Not Found" if answer is None else b"200 OK"
        await _whole(writer, status, body=msgspec.json.encode(answer))

    async def _play(self, name: str, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[name]
        if script.waits:
            self.waiting += 1
            await self.released.wait()
        if script.whole is not None:
            await _whole(writer, script.status, body=script.whole)
            return
        writer.write(_STREAM)
        for event in script.events:
            writer.write(event)
            await writer.drain()
        self.played.append(name)
        if script.ending is Ending.CUT:
            writer.transport.abort()
        elif script.ending is Ending.HOLD:
            await reader.read()
            self.abandoned.append(name)


async def _whole(writer: asyncio.StreamWriter, status: bytes, *, body: bytes) -> None:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    writer.write(head % (status, len(body)) + body)
    await writer.drain()


def event(chunk: dict[str, Any]) -> bytes:
    """A chunk as an event of a stream."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def says(text: str | None = None, *, finish: str | None = None, index: int = 0, **members: Any) -> bytes:
    """An event in which one choice says something; `members` stand beside the choices."""
    delta = {} if text is None else {"content": text}
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **members})


def counts(prompt: int | None = None, completion: int | None = None, **details: Any) -> dict[str, Any]:
    """A `usage` object that says only what is given."""
    stated = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {name: count for name, count in stated.items() if count is not None} | details


def whole(text: str, usage: dict[str, Any] | None) -> Script:
    """An answer in one piece."""
    message = {"role": "assistant", "content": text}
    answer: dict[str, Any] = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    return Script(whole=msgspec.json.encode(answer))


DONE = b"data: [DONE]\n\n"
