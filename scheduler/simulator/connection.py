"""HTTP/1.1 of the stand-in: one connection, one request at a time, answers framed as uvicorn frames them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """A whole request.   headers: names in lower case."""

    method: str = ""
    path: str = ""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")


class Listener(Protocol):
    """Something that wants to know what becomes of the connection."""

    def resume(self) -> None: ...
    def abandon(self) -> None: ...


class Handler(Protocol):
    """The engine behind the connection."""

    def handle(self, request: Request, connection: Connection) -> Listener | None: ...


class Connection(asyncio.Protocol):
    """Parses requests, hands them one by one to the engine, and writes its answers."""

    def __init__(self, handler: Handler, open_ones: set[Connection], *, close_after_stream: bool) -> None:
        self._handler = handler
        self._open_ones = open_ones
        self._close_after_stream = close_after_stream
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._reading = Request()
        self._body: list[bytes] = []
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._listener: Listener | None = None
        self.blocked = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_ones.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_ones.discard(self)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.abandon()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self._listener is not None:
            self._listener.resume()

    # httptools

    def on_message_begin(self) -> None:
        self._reading, self._body = Request(), []

    def on_url(self, url: bytes) -> None:
        self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reading.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        request = self._reading
        request.method = self._parser.get_method().decode("ascii")
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._body)
        self._queue.append(request)
        self._next()

    # answers

    def whole(
        self,
        status: int,
        body: bytes,
        *,
        send: int | None = None,
        content_type: str = "application/json",
        extra: str = "",
    ) -> None:
        """A complete answer; `send`: only that many bytes of the body, and the connection stays as it is."""
        kind = f"content-type: {content_type}\r\n" if body else ""
        head = self._head(status, f"content-length: {len(body)}\r\n{kind}{extra}", closes=not self._keeps())
        self._transport.write(head + (body if send is None else body[:send]))
        if send is None:
            self._done(closes=not self._keeps())

    def stream_head(self) -> None:
        closes = self._close_after_stream or not self._keeps()
        self._transport.write(
            self._head(
                200,
                "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n",
                closes=closes,
            )
        )

    def stream_events(self, events: list[bytes]) -> None:
        self._transport.write(b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events]))

    def stream_end(self) -> None:
        self._transport.write(b"0\r\n\r\n")
        self._done(closes=self._close_after_stream or not self._keeps())

    def abort(self) -> None:
        """Cut the connection: what was written before may arrive, nothing after."""
        self._listener = None
        self._transport.close()

    def close(self) -> None:
        """Close it at once."""
        self._transport.abort()

    def _next(self) -> None:
        if self._current is None and self._queue and not self._transport.is_closing():
            request = self._current = self._queue.popleft()
            listener = self._handler.handle(request, self)
            if self._current is request:  # It may be answered already, and the next one begun.
                self._listener = listener

    def _done(self, *, closes: bool) -> None:
        self._current, self._listener = None, None
        if closes:
            self._transport.close()
        elif self._queue:
            self._next()

    def _keeps(self) -> bool:
        return self._current is not None and self._current.keep_alive

    def _head(self, status: int, fields: str, *, closes: bool) -> bytes:
        connection = "connection: close\r\n" if closes else ""
        return (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\ndate: {_http_date(int(time.time()))}\r\n"
            f"server: steelyard-simulator\r\n{fields}{connection}\r\n"
        ).encode("latin-1")


_date: tuple[int, str] = (0, "")


def _http_date(second: int) -> str:
    global _date  # noqa: PLW0603 - one string a second for the whole process
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True))
    return _date[1]
