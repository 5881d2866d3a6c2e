"""A client that loads the gateway and remembers of each request exactly what it received."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from tests.faults.stack import MODEL, until

_TIMEOUT_S = 60.0
_PAUSE_S = 0.02
"""After a failure, so that a gateway that is away is asked often and not without pause."""
_LITTLE_PATIENCE_S = 0.05
_CUT = (httpx.TransportError, httpx.StreamError)


class Kind(StrEnum):
    """What is asked for and how it is taken."""

    WHOLE = "whole"
    STREAM = "stream"
    STREAM_WITHOUT_USAGE = "stream_without_usage"
    HUNG_UP = "hung_up"
    """A stream that the client leaves after a few events."""
    GIVEN_UP = "given_up"
    """A whole answer that the client does not wait for."""

    @property
    def streamed(self) -> bool:
        return self not in (Kind.WHOLE, Kind.GIVEN_UP)

    @property
    def wants_usage(self) -> bool:
        return self is not Kind.STREAM_WITHOUT_USAGE


USUAL = (Kind.WHOLE, Kind.STREAM, Kind.STREAM_WITHOUT_USAGE, Kind.HUNG_UP)


@dataclass
class Received:
    """What a client has of one request.

    max_tokens: what it asked for in each of `choices` answers, and what the stand-in answers to the full.
    tokens: those of a stream, one a chunk.   done: `[DONE]` came.   error: the error object of an answer or
    of an event.   cut: how the connection failed under it.   left: the client hung up itself.
    sent_at, ended_at: of the loop's clock.
    """

    kind: Kind
    max_tokens: int
    sent_at: float
    choices: int = 1
    ended_at: float = 0.0
    status: int | None = None
    request_id: str | None = None
    text: str = ""
    events: int = 0
    tokens: int = 0
    usage: dict[str, Any] | None = None
    done: bool = False
    error: dict[str, Any] | None = None
    cut: str | None = None
    left: bool = False

    @property
    def complete(self) -> bool:
        """It was seen to its end: the usage or `[DONE]` came, and no error."""
        return self.status == 200 and self.error is None and (self.done or self.usage is not None)

    @property
    def ended_visibly(self) -> bool:
        """The client knows what became of it; an answer that just stops would be neither."""
        return self.complete or self.left or self.cut is not None or self.error is not None

    @property
    def failed(self) -> bool:
        return not self.complete and not self.left


class Load:
    """Requests without end from several callers at once, mixed of all kinds.

    received: every request, in the order in which they ended.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str,
        callers: int = 8,
        sizes: Iterable[int] = (5, 20, 40, 250),
        kinds: Iterable[Kind] = USUAL,
        choices: Iterable[int] = (1,),
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.received: list[Received] = []
        self._callers = callers
        self._pause_s = pause_s
        self._mix = itertools.cycle(itertools.product(sizes, kinds, choices))
        self._url = f"{url}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"}
        self._stopped = False

    @asynccontextmanager
    async def running(self, *, to_the_end: bool = True) -> AsyncIterator[None]:
        """Send while the block runs; at its end, wait for the requests under way or hang up on them."""
        self._stopped = False
        async with self._http() as http, asyncio.TaskGroup() as group:
            calls = [group.create_task(self._call_on(http)) for _ in range(self._callers)]
            try:
                yield
            finally:
                self._stopped = True
                for call in calls if not to_the_end else ():
                    call.cancel()

    async def burst(self, count: int, *, max_tokens: int, kind: Kind = Kind.WHOLE) -> list[Received]:
        """Send so many alike at once over new connections; returns when all have ended."""
        async with self._http() as http:
            calls = (self._call(http, kind, max_tokens=max_tokens) for _ in range(count))
            return await asyncio.gather(*calls)

    async def completes(self, count: int) -> None:
        """Wait until so many requests sent from now on have completed."""
        since = asyncio.get_running_loop().time()

        async def look() -> bool:
            return sum(one.complete for one in self.received if one.sent_at >= since) >= count

        await until(look)

    def failures(self) -> list[Received]:
        return [one for one in self.received if one.failed]

    def _http(self) -> httpx.AsyncClient:
        # Few connections are kept: most requests come over a new one, which the kernel gives to any gateway.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=2)
        return httpx.AsyncClient(headers=self._headers, limits=limits, timeout=_TIMEOUT_S, verify=False)

    async def _call_on(self, http: httpx.AsyncClient) -> None:
        while not self._stopped:
            max_tokens, kind, choices = next(self._mix)
            received = await self._call(http, kind, max_tokens=max_tokens, choices=choices)
            if received.failed:
                await asyncio.sleep(self._pause_s)

    async def _call(
        self, http: httpx.AsyncClient, kind: Kind, *, max_tokens: int, choices: int = 1
    ) -> Received:
        now = asyncio.get_running_loop().time
        received = Received(kind, max_tokens, sent_at=now(), choices=choices)
        patience_s = _LITTLE_PATIENCE_S if kind is Kind.GIVEN_UP else None
        try:
            async with (
                asyncio.timeout(patience_s),
                http.stream("POST", self._url, json=_body(received)) as answer,
            ):
                received.status = answer.status_code
                received.request_id = answer.headers.get("x-request-id")
                await _read(answer, received)
        except _CUT as error:
            received.cut = repr(error)
        except TimeoutError:
            received.left = True
        received.ended_at = now()
        self.received.append(received)
        return received


def _body(asked: Received) -> dict[str, Any]:
    kind = asked.kind
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Weigh this."}],
        "max_tokens": asked.max_tokens,
        "stream": kind.streamed,
    }
    if asked.choices > 1:
        body["n"] = asked.choices
    if kind.streamed and kind.wants_usage:
        body["stream_options"] = {"include_usage": True}
    return body


async def _read(answer: httpx.Response, received: Received) -> None:
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        body = json.loads(await answer.aread())
        received.error, received.usage = body.get("error"), body.get("usage")
        received.text = body["choices"][0]["message"]["content"] if "choices" in body else ""
        return
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            _take(line.removeprefix("data:").strip(), received)
        if received.kind is Kind.HUNG_UP and received.events > 3:
            received.left = True
            return


def _take(data: str, received: Received) -> None:
    received.events += 1
    if data == "[DONE]":
        received.done = True
        return
    event = json.loads(data)
    received.error = event.get("error", received.error)
    received.usage = event.get("usage") or received.usage
    for choice in event.get("choices", ()):
        said = choice["delta"].get("content") or ""
        received.text += said
        received.tokens += bool(said)
