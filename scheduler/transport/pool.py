"""The connections to one target: few, warm, and never a dead one handed out."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic

from scheduler.transport.connection import Connection
from scheduler.transport.deadlines import DeadlineWatch
from scheduler.transport.exchange import Exchange
from scheduler.transport.model import Limits, Target


class Pool:
    """Last in, first out, so that what is not needed grows old and is closed."""

    def __init__(self, target: Target, *, limits: Limits, watch: DeadlineWatch) -> None:
        self._target = target
        self._limits = limits
        self._watch = watch
        self._loop = watch.loop
        self._idle: dict[Connection, float] = {}  # since when; oldest first
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._context: ssl.SSLContext | None = None
        self._emptied: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self._open)

    def start(self, exchange: Exchange) -> None:
        """Send on an idle connection, or else on a fresh one."""
        connection = self._take()
        if connection is not None:
            connection.begin(exchange)
        elif len(self._open) + len(self._connecting) >= self._limits.connections_per_target:
            self._loop.call_soon(exchange.fail, "too many connections")
        else:
            self._connect(exchange)
        exchange.watched_by(self._watch)

    def retry(self, exchange: Exchange) -> None:
        """Send once more, on a fresh connection."""
        exchange.retried = True
        self._connect(exchange)

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next exchange."""
        if len(self._idle) >= self._limits.idle_per_target:
            connection.abort()
            return
        self._idle[connection] = monotonic()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.idle_s, self._sweep)

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.forget_idle(connection)
        if self._emptied is not None and not self._open and not self._emptied.done():
            self._emptied.set_result(None)

    def forget_idle(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    async def close(self) -> None:
        """Close every connection and wait until they are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        if self._open:
            self._emptied = self._loop.create_future()
            for connection in list(self._open):
                connection.abort()
            await self._emptied

    def _take(self) -> Connection | None:
        while self._idle:
            connection, since = self._idle.popitem()
            if monotonic() - since < self._limits.idle_s and connection.alive:
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        self._sweeper = None
        now = monotonic()
        for connection in [c for c, since in self._idle.items() if now - since >= self._limits.idle_s]:
            connection.abort()
        if self._idle:
            oldest = next(iter(self._idle.values()))
            self._sweeper = self._loop.call_later(oldest + self._limits.idle_s - now, self._sweep)

    def _connect(self, exchange: Exchange) -> None:
        task = self._loop.create_task(self._open_for(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        exchange.connecting(task)

    async def _open_for(self, exchange: Exchange) -> None:
        target = self._target
        try:
            _, connection = await self._loop.create_connection(
                lambda: Connection(self, self._limits),
                target.host,
                target.port,
                ssl=self._tls(),
                server_hostname=(target.server_name or target.host) if target.tls else None,
            )
        except (OSError, ValueError) as error:  # refused, no such name, a certificate we don't trust
            exchange.connect_failed(f"{type(error).__name__}: {error}")
        else:
            connection.begin(exchange)

    def _tls(self) -> ssl.SSLContext | None:
        """The context of this target: certificates and names are verified."""
        if self._target.tls and self._context is None:
            self._context = ssl.create_default_context(cafile=self._target.ca_file)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context
