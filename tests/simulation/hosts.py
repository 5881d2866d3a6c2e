"""The processes of a run, put together from the product's own parts: what they have in common; the settler.

The clock, the disk, the network to the database and the engines are simulated, all between is real.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.journal.settler import Settler
from tests.simulation.arena import EPOCH_MS
from tests.simulation.loop import Process, SimLoop

if TYPE_CHECKING:
    from tests.simulation.world import World


class MachineClock:
    """The machine's clocks: the wall clock may be set, the monotonic one goes on."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return self._loop.time()


class Host(ABC):
    """A place where one process lives at a time, one incarnation after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.moments: Counter[str] = Counter()

    @property
    def alive(self) -> bool:
        return self.process is not None and not self.process.dead

    def start(self) -> None:
        """Start the process, unless it runs or its machine is to stay down."""
        if self.alive:
            return
        process = self.process = Process(self.world.loop, self.name, seen=self.moments)
        process.at_moment = self.world.reaper(self)
        process.on_death.append(lambda: self.world.buried(process))
        self.world.trace.note(self.name, "started")
        process.spawn(self._live(process))

    @abstractmethod
    async def run(self, process: Process) -> None:
        """What the process does, from its start to its end."""

    async def _live(self, process: Process) -> None:
        try:
            await self.run(process)
        except Exception as error:
            self.world.findings.append(f"{self.name} broke: {type(error).__name__}: {error}")
            raise


class SettlerHost(Host):
    """One settler after the other, on the machine of the gateways."""

    def __init__(self, world: World, name: str, *, engine: AsyncEngine) -> None:
        super().__init__(world, name)
        self._engine = engine

    async def run(self, process: Process) -> None:
        world = self.world
        self._engine.sync_engine.dispose(close=False)
        self.settler = Settler(
            self._engine, folder=world.disk.folder, clock=world.clock, run_blocking=world.disk.run_blocking
        )
        await self.settler.run(asyncio.Event(), interval_s=0.2)
