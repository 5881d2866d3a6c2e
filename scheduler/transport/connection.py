"""One TCP or TLS connection to an engine, carrying one exchange at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, cast

from scheduler.transport.exchange import Exchange
from scheduler.transport.model import Limits
from scheduler.transport.response import ResponseReader

if TYPE_CHECKING:
    from scheduler.transport.pool import Pool

_SLICE = 256 * 1024
"""Bytes of a request's body given to the transport at a time; at most two of them wait there."""
_AT_ONCE = 64 * 1024
"""A body up to this is joined to its head: copying it costs less than a second system call."""


class Connection(asyncio.Protocol):
    """Made by a `Pool`, which owns it until `connection_lost`."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self.used = False
        self._pool = pool
        self._reader = ResponseReader(limits)
        self._transport: asyncio.Transport  # from connection_made on; nothing is called before
        self._exchange: Exchange | None = None
        self._unsent = memoryview(b"")
        self._write_paused = False

    @property
    def alive(self) -> bool:
        """False once it is closing, for whatever reason."""
        return not self._transport.is_closing()

    def begin(self, exchange: Exchange) -> None:
        """Write the exchange's request and deliver its answer; the connection must be idle."""
        self._exchange = exchange
        self._reader.begin(bodiless=exchange.bodiless)
        exchange.attached(self)
        if exchange.paused:
            self.pause()
        if len(exchange.body) <= _AT_ONCE:
            self._transport.write(exchange.head + exchange.body)
            exchange.written(all_sent=True)
        else:
            self._transport.write(exchange.head)
            self._unsent = memoryview(exchange.body)
            self._write_on(exchange)

    def pause(self) -> None:
        if self.alive:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.alive:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, without flushing; the exchange on it hears nothing more."""
        self._exchange = None
        self._unsent = memoryview(b"")
        self._pool.forget_idle(self)
        self._transport.abort()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=_SLICE)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pool.add(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nobody asked: whatever this is, the connection can't be trusted
            self.abort()
            return
        exchange.response_started = True
        reader = self._reader
        had_head = reader.status
        reader.feed(data)
        if reader.status != had_head:
            if reader.status >= 400:  # refused while the body was on its way: spare the rest
                self._unsent = memoryview(b"")
            exchange.deliver_head(reader.status, reader.headers)
        if self._exchange is exchange and (piece := reader.take()):
            exchange.deliver_piece(piece)
        if self._exchange is not exchange:
            return  # cancelled by its sink
        if reader.complete:
            self._complete(exchange)
        elif reader.fault is not None:
            exchange.fail(reader.fault)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()
        elif self._reader.ends_with_connection() and self._is_close_authentic():
            self._complete(exchange)
        else:
            self._lost("connection closed by the engine")

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.remove(self)
        self._lost(f"connection lost: {error or 'closed'}")

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._unsent and self._exchange is not None:
            self._write_on(self._exchange)

    def _is_close_authentic(self) -> bool:
        """Whether the engine itself ended the stream; below TLS anyone on the wire can (RFC 9112 §9.8).

        asyncio reports the end of TCP and the end of TLS alike, so ask OpenSSL for its close_notify.
        """
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        if tls is None:
            return True
        try:
            return tls.read(1) == b""
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False

    def _write_on(self, exchange: Exchange) -> None:
        """Write more of a large body, until the transport has enough or all is written."""
        while self._unsent and not self._write_paused:
            self._transport.write(self._unsent[:_SLICE])
            self._unsent = self._unsent[_SLICE:]
        exchange.written(all_sent=not self._unsent)

    def _complete(self, exchange: Exchange) -> None:
        """Give the connection back if it is in a known state, then say so."""
        self._exchange = None
        if self._reader.reusable and exchange.sent and not self._write_paused and self.alive:
            if exchange.paused:
                self.resume()
            self.used = True
            self._pool.give_back(self)
        else:
            self.abort()
        exchange.deliver_end()

    def _lost(self, reason: str) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if self.used and not exchange.response_started and not exchange.retried:
            # It died while it waited in the pool: the engine never saw this request.
            self._exchange = None
            self._pool.retry(exchange)
            self._transport.abort()
        else:
            exchange.fail(reason)
