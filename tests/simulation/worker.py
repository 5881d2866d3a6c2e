"""The worker: turns grants and seals lines, as its tasks do, in a process that may die at any statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.core.clock import from_ms
from billing.chain.sealing import seal, waiting_since
from billing.ledger import expiry
from tests.simulation.control import UNREACHED
from tests.simulation.hosts import Host
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
_INTERVAL_S = 1.5
_MOST_LINES = 7
"""So few in one transaction that a sealer may die between two of them."""


class WorkerHost(Host):
    """One worker after the other.   idle_ms: since when its rounds find nothing to do; None: they do."""

    def __init__(self, world: World, name: str, *, engine: AsyncEngine) -> None:
        super().__init__(world, name)
        self._engine = engine
        self.idle_ms: int | None = None

    async def run(self, process: Process) -> None:
        self._engine.sync_engine.dispose(close=False)
        while True:
            began_ms = self.world.clock.now_ms()
            try:
                done = await self._turn_grants() + await self._seal()
            except UNREACHED as error:
                self.world.trace.note(self.name, "failed", type(error).__name__)
                done = 1
            if done:
                self.idle_ms = None
            elif self.idle_ms is None:
                self.idle_ms = began_ms
            await asyncio.sleep(_INTERVAL_S)

    async def _turn_grants(self) -> int:
        """How many wallets have grants whose time has come and that are not done yet."""
        now = from_ms(self.world.clock.now_ms())
        due = await self._in_transaction(partial(expiry.find_due, now=now))
        for wallet_id in due:
            turned = await self._in_transaction(partial(expiry.turn, wallet_id=wallet_id, now=now))
            self.world.trace.note(self.name, "turned", wallet_id[-6:], turned)
        return len(due)

    async def _seal(self) -> int:
        links, more = 0, True
        while more:
            now = from_ms(self.world.clock.now_ms())
            step = await self._in_transaction(partial(seal, now=now, most=_MOST_LINES))
            more = step is not None and step.more
            links += step.links if step is not None else 0
        if links:
            self.world.trace.note(self.name, "sealed", links)
        return links + (await self._in_transaction(waiting_since) is not None)

    async def _in_transaction(self, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._engine.begin() as connection:
            return await act(connection)
