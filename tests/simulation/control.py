"""Operators: what they change goes through the product's services, in a process that may die and retry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.core.errors import SteelyardError
from tests.simulation.hosts import Host
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

Operation = Callable[[AsyncConnection], Awaitable[None]]
_RETRY_S = 0.2
UNREACHED = (DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class ControlHost(Host):
    """Does one operation after the other, each in a transaction, until each is answered."""

    def __init__(self, world: World, name: str, *, engine: AsyncEngine) -> None:
        super().__init__(world, name)
        self._engine = engine
        self._queue: deque[Operation] = deque()
        self._done = 0
        self._asked = 0

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def enqueue(self, operation: Operation) -> None:
        """Have it done some time. Done again if the process died before it knew that it was done."""
        self._queue.append(operation)
        self.start()

    async def do(self, operation: Operation) -> None:
        """Have it done now."""
        self.enqueue(operation)
        while self.busy:
            await asyncio.sleep(0.01)

    async def run(self, process: Process) -> None:
        self._engine.sync_engine.dispose(close=False)
        while self._queue:
            try:
                async with self._engine.begin() as connection:
                    await self._queue[0](connection)
            except SteelyardError as refusal:
                self.world.trace.note(self.name, "refused", type(refusal).__name__)
                self._queue.popleft()
            except UNREACHED as error:
                self.world.trace.note(self.name, "failed", type(error).__name__)
                await asyncio.sleep(_RETRY_S)
            else:
                self.world.trace.note(self.name, "did", self._queue[0].__name__)
                self._queue.popleft()
        process.kill()
