"""The client of engines: one for each process and event loop."""

from __future__ import annotations

import asyncio

from scheduler.transport.deadlines import DeadlineWatch
from scheduler.transport.exchange import Exchange
from scheduler.transport.model import Deadlines, EngineRequest, Limits, Target
from scheduler.transport.pool import Pool
from scheduler.transport.ports import Sink
from scheduler.transport.request import encode_head


class EngineClient:
    """Sends requests to engines over pooled HTTP/1.1 connections, by callbacks and without a task each.

    To be used from one event loop, the one that runs at the first `send`.
    """

    def __init__(self, *, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._pools: dict[Target, Pool] = {}
        self._watch: DeadlineWatch | None = None
        self._closed = False

    def send(self, target: Target, request: EngineRequest, *, deadlines: Deadlines, sink: Sink) -> Exchange:
        """Start an exchange. Never blocks; `sink` hears nothing before this returns.

        Raises ValueError for a request that can't be written safely (see `encode_head`), and for nothing
        else: what the network does reaches `sink.error`. A status of 400 and above is an answer.
        """
        head = encode_head(request, target)
        exchange = Exchange(
            target,
            head=head,
            body=request.body,
            bodiless=request.method == "HEAD",
            deadlines=deadlines,
            sink=sink,
        )
        if self._closed:
            asyncio.get_running_loop().call_soon(exchange.fail, "client closed")
            return exchange
        pool = self._pools.get(target)
        if pool is None:
            pool = self._pools[target] = Pool(target, limits=self._limits, watch=self._running_watch())
        pool.start(exchange)
        return exchange

    @property
    def connections(self) -> int:
        """How many connections are open, busy and idle together."""
        return sum(pool.connections for pool in self._pools.values())

    async def close(self) -> None:
        """Fail what still runs, close every connection and wait until they are gone. Idempotent."""
        self._closed = True
        if self._watch is not None:
            self._watch.close("client closed")
        for pool in self._pools.values():
            await pool.close()

    def _running_watch(self) -> DeadlineWatch:
        if self._watch is None:
            self._watch = DeadlineWatch(asyncio.get_running_loop())
        return self._watch
