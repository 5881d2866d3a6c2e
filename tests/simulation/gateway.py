"""The gateways of a run: `app.bootstrap.gateway` without its sockets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from app.bootstrap.gateway_desks import living_backend
from app.catalog.feed import CHANNEL, CatalogFeed
from app.catalog.snapshot import Fleet, Snapshot
from app.core import ids
from app.core.errors import Conflict, DependencyError
from app.gateway.access_log import AccessLog
from app.gateway.admission import AdmissionDesk
from app.gateway.exact_count import ExactCounter
from app.gateway.metrics import GatewayMetrics
from app.gateway.progress import Running
from app.gateway.route import Gateway
from app.gateway.schedule import ScheduleDesk, Timeouts
from app.gateway.settle import SettleDesk
from app.gateway.task_store import PostgresTasks
from app.gateway.tasks import TaskDesk
from app.gateway.tokenizer import TokenCounter
from billing.journal.writer import JournalWriter
from billing.quota.borrower import Borrower
from billing.quota.leases import Leases
from scheduler.dispatch import Dispatcher
from scheduler.registry.backend import HealthLimits
from scheduler.registry.model import ProbeResult, ProbeStatus
from scheduler.registry.service import Registry
from tests.simulation.client import Call, Connection
from tests.simulation.disk import SimSyncer
from tests.simulation.engine import ScriptedClient
from tests.simulation.hosts import Host
from tests.simulation.loop import Process
from tests.simulation.refusals import Overheard
from tests.simulation.tally import CountedLeases
from tests.simulation.wire import SimPool

if TYPE_CHECKING:
    from tests.simulation.world import World

_TIMEOUTS = Timeouts(connect_s=0.5, first_token_s=1.5, idle_s=1.0, total_s=8.0)
_GRACE_S = 3.0
_RETRY_S = 0.2


class GatewayHost(Host):
    """One gateway after the other.   deaf_until: no notification reaches it before."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.deaf_until = 0.0
        self._rng = Random(f"{world.plan.seed}:{name}")
        self._forget()

    def _forget(self) -> None:
        clock = self.world.clock
        self.ready = False
        self.snapshot = Snapshot()
        self.leases = Leases(clock=clock)
        self.gateway: Gateway
        self.borrower: Borrower
        self.journal: JournalWriter
        self.running: Running
        self.tasks: TaskDesk
        self._calls: dict[asyncio.Task[Any], None] = {}

    async def run(self, process: Process) -> None:
        self._forget()
        world, clock = self.world, self.world.clock
        self.leases = CountedLeases(world.tally, process, clock=clock, rates_when_cut_off="closed")
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
        self.tasks = TaskDesk(PostgresTasks(pool), clock=clock)
        self._build(process)
        self._feed = self._new_feed(pool)
        if not await self._register():
            self._end(process)
            return
        await self._feed.start()
        self.running.start()
        self.ready = True
        world.trace.note(self.name, "serves", incarnation_id[-6:])

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

    def _new_feed(self, pool: Any) -> CatalogFeed:
        return CatalogFeed(
            "",
            snapshot=self.snapshot,
            clock=self.world.clock,
            on_fleet=self._take_fleet,
            on_allowance=self.borrower.notice,
            on_task=lambda task_id: self.tasks.notice(ids.TaskId(task_id)),
            on_tenants=lambda: self.running.cut_suspended(self.snapshot),
            connect=lambda: pool.acquire(timeout=1.0),
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
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None), context=process.context())
        return connection

    def hear(self, news: str) -> None:
        """A notification, if it gets through."""
        process, loop = self.process, self.world.loop
        if process is not None and loop.time() >= self.deaf_until:
            self.world.network.tell(process, CHANNEL, news)

    def stop(self) -> None:
        """End in order, and be replaced if the run goes on."""
        if self.process is not None and self.alive and self.ready:
            self.ready = False
            self.process.spawn(self._stop(self.process), name="stop")

    async def _stop(self, process: Process) -> None:
        self.gateway.draining = True
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=_GRACE_S)
        self.running.abort_all()
        while self._calls:
            await asyncio.wait(list(self._calls))
        await self.running.close()
        await self.settle.close()
        await self._feed.close()
        await self.borrower.close()
        await self.journal.close()
        self.world.trace.note(self.name, "stopped")
        self._end(process)

    def _end(self, process: Process) -> None:
        """The process exits; its supervisor starts another one."""
        self.world.loop.world.post_later(_RETRY_S, self.world.restart, self)
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
            tasks=self.tasks,
            admission=AdmissionDesk(
                self.snapshot,
                leases=self.leases,
                borrower=Overheard(self.borrower, world),
                journal=self.journal,
                clock=clock,
                counter=ExactCounter(
                    client, backend_of=lambda deployment: living_backend(self._registry, deployment)
                ),
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

    async def _register(self) -> bool:
        """False if the incarnation was closed before it began."""
        while True:
            try:
                await self.borrower.register("machine")
            except Conflict:
                return False
            except DependencyError:
                await asyncio.sleep(_RETRY_S)
            else:
                return True

    def _take_fleet(self, fleet: Fleet) -> None:
        self._registry.apply(fleet.backends)
        for spec in self._registry.specs():
            self._registry.record_probe(spec, ProbeResult(ProbeStatus.PASSED))


def _nowhere(_data: bytes) -> None:
    """Log lines are of no interest."""
