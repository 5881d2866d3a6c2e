"""The processes of a run: gateways and a settler, put together from the product's own parts.

As `app.bootstrap` does it, but for the sockets: the clock, the disk, the network to the database and the
engines are simulated, all between is real.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.catalog import queries
from app.catalog.snapshot import Snapshot
from app.core import ids
from app.core.errors import Conflict, DependencyError
from app.core.ids import AllowanceId
from app.gateway.access_log import AccessLog
from app.gateway.admission import AdmissionDesk
from app.gateway.metrics import GatewayMetrics
from app.gateway.progress import Running
from app.gateway.route import Gateway
from app.gateway.schedule import ScheduleDesk, Timeouts
from app.gateway.settle import SettleDesk
from app.gateway.tokenizer import TokenCounter
from billing.journal.settler import Settler
from billing.journal.writer import JournalWriter
from billing.quota.borrower import Borrower
from billing.quota.leases import Leases
from billing.quota.wire import Wire
from scheduler.dispatch import Dispatcher
from scheduler.registry.backend import HealthLimits
from scheduler.registry.model import ProbeResult, ProbeStatus
from scheduler.registry.service import Registry
from tests.simulation.arena import EPOCH_MS
from tests.simulation.client import Call, Connection
from tests.simulation.disk import SimSyncer
from tests.simulation.engine import ScriptedClient
from tests.simulation.loop import Process, SimLoop
from tests.simulation.refusals import Overheard
from tests.simulation.wire import SimPool

if TYPE_CHECKING:
    from tests.simulation.world import World

_TIMEOUTS = Timeouts(connect_s=0.5, first_token_s=1.5, idle_s=1.0, total_s=8.0)
_GRACE_S = 3.0
_RETRY_S = 0.2
_UNREACHED = (*Wire.ERRORS, DependencyError)


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


class GatewayHost(Host):
    """One gateway after the other."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.deaf_until = 0.0
        self._rng = Random(f"{world.plan.seed}:{name}")
        self._forget()

    def _forget(self) -> None:
        self.ready = False
        self.snapshot = Snapshot()
        self.leases = Leases()
        self.gateway: Gateway
        self.borrower: Borrower
        self.journal: JournalWriter
        self.running: Running
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._reloading = False
        self._stale = False

    async def run(self, process: Process) -> None:
        self._forget()
        world, clock = self.world, self.world.clock
        incarnation_id = ids.incarnation_id()
        self.incarnation_id = incarnation_id
        self.journal = world.disk.change(lambda: self._new_journal(process))
        pool: Any = SimPool(world.network, process)
        self.borrower = Borrower(
            pool,
            leases=self.leases,
            incarnation_id=incarnation_id,
            lease_renew_s=0.4,
            on_closed=lambda: process.post(self.stop),
            clock=clock,
        )
        self._registry = Registry(clock=clock, limits=HealthLimits(probe_fresh_s=1e9))
        self._build(process)
        await self._register(pool)
        self.running.start()
        self.ready = True
        world.trace.note(self.name, "serves", incarnation_id[-6:])
        if self._stale:
            self._refresh(process)

    def _new_journal(self, process: Process) -> JournalWriter:
        disk = self.world.disk
        return JournalWriter.create(
            disk.folder,
            incarnation_id=self.incarnation_id,
            clock=self.world.clock,
            commit_ms=0,
            open_file=disk.open_file(process),
            open_syncer=lambda file: SimSyncer(file, process=process, rng=self._rng),
        )

    def serve(self, call: Call) -> Connection | None:
        """Take a call; None if nobody listens."""
        process = self.process
        if process is None or process.dead or not self.ready:
            call.refused_connection = True
            return None
        world = self.world
        connection = Connection(world.loop, call, process=process, rng=self._rng, trace=world.trace)
        task = process.spawn(
            self.gateway(connection.scope(), connection.receive, connection.send), name=f"call-{call.number}"
        )
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None), context=process.context())
        return connection

    def hear(self, news: str) -> None:
        """A notification, if it gets through."""
        process, loop = self.process, self.world.loop
        if process is not None and loop.time() >= self.deaf_until:
            process.post_later(self._rng.random() * 0.005, self._heard, news)

    def stop(self) -> None:
        """End in order, and be replaced if the run goes on."""
        if self.process is not None and self.alive and self.ready:
            self.ready = False
            self.process.spawn(self._stop(self.process), name="stop")

    async def _stop(self, process: Process) -> None:
        self.gateway.draining = True
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_GRACE_S)
        self.running.abort_all()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.running.close()
        await self.settle.close()
        await self.borrower.close()
        await self.journal.close()
        self.world.trace.note(self.name, "stopped")
        process.kill()

    def _build(self, process: Process) -> None:
        world, clock = self.world, self.world.clock
        client = ScriptedClient(world.engines, process)
        metrics = self.metrics = GatewayMetrics()
        access_log = AccessLog(_nowhere, clock=clock)
        self.running = Running(self.journal, clock=clock, interval_s=0.1)
        self.settle = SettleDesk(
            journal=self.journal,
            leases=self.leases,
            clock=clock,
            counter=TokenCounter(client),
            metrics=metrics,
            access_log=access_log,
        )
        dispatcher = Dispatcher(self._registry, client, clock=clock, draw=self._rng.random)
        self.gateway = Gateway(
            snapshot=self.snapshot,
            admission=AdmissionDesk(
                self.snapshot,
                leases=self.leases,
                borrower=Overheard(self.borrower, world),
                journal=self.journal,
                clock=clock,
            ),
            schedule=ScheduleDesk(dispatcher, timeouts=_TIMEOUTS),
            settle=self.settle,
            running=self.running,
            journal=self.journal,
            metrics=metrics,
            access_log=access_log,
            clock=clock,
            body_limit_bytes=1_000_000,
            body_timeout_s=1.0,
        )

    async def _register(self, pool: SimPool) -> None:
        while True:
            try:
                await self.borrower.register("machine")
                await self._load(pool)
            except Conflict:
                self.stop()
                return
            except _UNREACHED:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _load(self, pool: SimPool) -> None:
        """Read the whole catalogue, as `CatalogFeed` does."""
        connection: Any = await pool.acquire(timeout=1.0)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                keys = await queries.load_keys(connection)
                tenants = await queries.load_tenants(connection)
                fleet = await queries.load_fleet(connection)
        finally:
            connection.drop()
        self.snapshot.put_keys(keys, whole=True)
        self.snapshot.put_tenants(tenants, whole=True)
        self.snapshot.fleet = fleet
        self._registry.apply(fleet.backends)
        for spec in self._registry.specs():
            self._registry.record_probe(spec, ProbeResult(ProbeStatus.PASSED))

    def _heard(self, news: str) -> None:
        kind, _, changed = news.partition(":")
        if kind == "allowance":
            if self.ready:
                self.borrower.notice(AllowanceId(changed))
            return
        self._stale = True
        if self.ready and self.process is not None:
            self._refresh(self.process)

    def _refresh(self, process: Process) -> None:
        if not self._reloading:
            self._reloading = True
            process.spawn(self._reload(process), name="reload")

    async def _reload(self, process: Process) -> None:
        """Read again for as long as there is news that came after the reading began."""
        while self._stale:
            self._stale = False
            try:
                await self._load(SimPool(self.world.network, process))
            except _UNREACHED:
                self._stale = True
                await asyncio.sleep(_RETRY_S)
        self._reloading = False


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


def _nowhere(_data: bytes) -> None:
    """Log lines are of no interest."""
