"""The gateway's process: `python -m app.bootstrap.gateway`. SIGTERM ends it in order.

Start: database, journal (locked and in place), quota, catalogue, then the port.
Stop: refuse what is new, let streams end for some seconds, settle the rest, return leases, close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import socket
import sys
from typing import Any

import asyncpg
import uvloop

from app.bootstrap.gateway_desks import admission_desk, task_desk, timeouts
from app.catalog.feed import CatalogFeed
from app.catalog.snapshot import Fleet, Snapshot
from app.core import ids
from app.core import log as logs
from app.core.clock import SystemClock
from app.core.errors import Conflict, DependencyError
from app.core.probe_server import ProbeServer
from app.core.settings import Settings, settings
from app.gateway.access_log import AccessLog
from app.gateway.admission import AdmissionDesk
from app.gateway.exports import admission_source, sources_of
from app.gateway.memory import return_large_blocks
from app.gateway.metrics import GatewayMetrics
from app.gateway.progress import Running
from app.gateway.route import Gateway
from app.gateway.schedule import ScheduleDesk
from app.gateway.server import GatewayServer, PortTaken, listen
from app.gateway.settle import SettleDesk
from app.gateway.tasks import TaskDesk
from app.gateway.tokenizer import TokenCounter
from app.gateway.tokenizer_files import TokenizerFiles
from billing.journal.room import Limits
from billing.journal.writer import JournalWriter
from billing.quota.borrower import Borrower
from billing.quota.leases import Leases
from scheduler.dispatch import Dispatcher
from scheduler.registry.backend import HealthLimits
from scheduler.registry.probe import EngineProbe
from scheduler.registry.prober import Prober
from scheduler.registry.service import Registry
from scheduler.transport.client import EngineClient

log = logging.getLogger(__name__)

RECURSION_LIMIT = 500
"""Bodies nested deeper are refused here. An engine's own parser gives up at about 1,000, with a 500."""
STREAM_GRACE_S = 6.0
CONNECTION_GRACE_S = 8
_DATABASE_RETRY_S = 0.5


class GatewayProcess:
    """One incarnation of a gateway.   serving: set once requests are taken.   metrics: what it counts."""

    def __init__(self, own: Settings) -> None:
        self._own = own
        self.serving = asyncio.Event()
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._state = "starting"
        clock = self._clock = SystemClock()
        self._incarnation_id = ids.incarnation_id()
        self._snapshot = Snapshot()
        self.metrics = GatewayMetrics()
        self._access_log = AccessLog(_write_lines, clock=clock)
        self._client = EngineClient()
        self._counter = TokenCounter(self._client, files=TokenizerFiles(clock=clock))
        # News of a backend outlives a few probes, however rare the operator made them.
        probe_fresh_s = max(HealthLimits().probe_fresh_s, 5 * own.probe_interval_s)
        self._registry = Registry(clock=clock, limits=HealthLimits(probe_fresh_s=probe_fresh_s))
        self._leases = Leases(clock=clock, rates_when_cut_off=own.rates_when_cut_off)
        self._dispatcher = Dispatcher(
            self._registry, self._client, clock=clock, draw=random.random, max_attempts=own.attempts
        )
        self._feed = CatalogFeed(
            own.database_url.get_secret_value(),
            snapshot=self._snapshot,
            clock=clock,
            on_fleet=self._take_fleet,
            on_allowance=self._notice,
            on_task=self._notice_task,
            on_tenants=self._cut_suspended,
        )
        self._pool: asyncpg.Pool | None = None
        self._tasks: TaskDesk | None = None
        self._running: Running | None = None
        self._borrower: Borrower | None = None
        self._journal: JournalWriter | None = None
        self._probing: asyncio.Task[None] | None = None

    def stop(self, exit_code: int = 0) -> None:
        """Begin to stop. Idempotent."""
        self._exit_code = self._exit_code or exit_code
        self._stop.set()

    async def run(self) -> int:
        """Serve until `stop`; returns the exit code. Raises PortTaken, OSError if it can't begin."""
        own = self._own
        listener = listen(own.gateway_host, own.gateway_port)
        probes = ProbeServer(health=self._health, metrics=self.metrics.render)
        await probes.start(own.metrics_host, own.metrics_port)
        try:
            if await self._connect():
                await self._serve(listener)
        finally:
            listener.close()
            await self._close()
            await probes.close()
        return self._exit_code

    async def _connect(self) -> bool:
        """Open what the data plane stands on, waiting for the database; False if told to stop meanwhile."""
        own, clock = self._own, self._clock
        pool = await self._or_stop(self._open_pool())
        if pool is None:
            return False
        self._pool = pool
        self._journal = JournalWriter.create(
            own.journal_dir,
            incarnation_id=self._incarnation_id,
            clock=clock,
            commit_ms=own.journal_commit_ms,
            limits=Limits(own.journal_max_bytes, own.journal_free_bytes),
        )
        self._journal.on_broken = self._journal_broke
        self._borrower = Borrower(
            pool,
            leases=self._leases,
            incarnation_id=self._incarnation_id,
            recall_bound_s=own.recall_bound_s,
            lease_renew_s=own.lease_renew_s,
            on_closed=self._incarnation_closed,
            clock=clock,
        )
        self._state = "waiting for the catalogue"
        return await self._or_stop(self._register_and_load()) is not None

    async def _register_and_load(self) -> bool:
        assert self._borrower is not None
        while True:
            try:
                await self._borrower.register(socket.gethostname())
                break
            except DependencyError:
                await asyncio.sleep(_DATABASE_RETRY_S)
        await self._feed.start()
        prober = Prober(
            self._registry,
            EngineProbe(self._client),
            interval_s=self._own.probe_interval_s,
            clock=self._clock,
            draw=random.random,
        )
        self._probing = asyncio.create_task(prober.run(), name="prober")
        return True

    async def _serve(self, listener: socket.socket) -> None:
        own, clock, journal, borrower = self._own, self._clock, self._journal, self._borrower
        assert journal is not None
        assert borrower is not None
        assert self._pool is not None
        running = self._running = Running(journal, clock=clock, interval_s=own.progress_interval_s)
        self._tasks = task_desk(self._pool, clock=clock)
        settle = SettleDesk(
            journal=journal,
            leases=self._leases,
            clock=clock,
            counter=self._counter,
            metrics=self.metrics,
            access_log=self._access_log,
        )
        gateway = Gateway(
            snapshot=self._snapshot,
            tasks=self._tasks,
            admission=self._admission(journal, borrower),
            schedule=ScheduleDesk(self._dispatcher, timeouts=timeouts(own)),
            settle=settle,
            running=running,
            journal=journal,
            metrics=self.metrics,
            access_log=self._access_log,
            clock=clock,
            body_limit_bytes=own.body_limit_bytes,
            body_timeout_s=own.body_timeout_s,
        )
        server = GatewayServer(
            gateway,
            head_timeout_s=own.body_timeout_s,
            stall_timeout_s=own.idle_timeout_s,
            grace_s=CONNECTION_GRACE_S,
        )
        self.metrics.sources += sources_of(
            journal=journal,
            leases=self._leases,
            borrower=borrower,
            registry=self._registry,
            dispatcher=self._dispatcher,
            snapshot=self._snapshot,
            access_log=self._access_log,
            running=running,
            tokens=self._counter,
        )
        self._access_log.start()
        running.start()
        serving = asyncio.create_task(server.run_on(listener), name="serve")
        serving.add_done_callback(self._server_ended)
        self._state = "serving"
        self.serving.set()
        log.info("gateway_started", extra={"port": own.gateway_port, "incarnation_id": self._incarnation_id})
        await self._stop.wait()
        await self._drain(gateway, server=server, running=running, serving=serving)
        await settle.close()

    def _admission(self, journal: JournalWriter, borrower: Borrower) -> AdmissionDesk:
        """The desk that admits; the metrics page tells of it, and of the tasks."""
        desk = admission_desk(
            self._own,
            self._snapshot,
            leases=self._leases,
            borrower=borrower,
            journal=journal,
            clock=self._clock,
            client=self._client,
            registry=self._registry,
        )
        assert self._tasks is not None
        self.metrics.sources.append(admission_source(desk, self._tasks))
        return desk

    async def _drain(
        self, gateway: Gateway, *, server: GatewayServer, running: Running, serving: asyncio.Task[None]
    ) -> None:
        self._state = "stopping"
        gateway.draining = True
        server.stop()
        await asyncio.wait({serving}, timeout=STREAM_GRACE_S)
        running.abort_all()
        await serving
        await running.close()

    async def _close(self) -> None:
        """Close in the order in which nothing is lost: engines, quota (what is durable returns), journal."""
        await self._feed.close()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._client.close()
        self._counter.close()
        if self._borrower is not None:
            await self._borrower.close()
        if self._pool is not None:
            self._pool.terminate()
        if self._journal is not None:
            await self._journal.close()
        await self._access_log.close()

    async def _open_pool(self) -> asyncpg.Pool:
        while True:
            try:
                pool = await asyncpg.create_pool(
                    self._own.database_url.get_secret_value(), min_size=1, max_size=2, timeout=5
                )
            except (OSError, asyncpg.PostgresError, TimeoutError) as error:
                self._state = f"waiting for PostgreSQL ({type(error).__name__})"
                await asyncio.sleep(_DATABASE_RETRY_S)
            else:
                return pool

    async def _or_stop(self, waited: Any) -> Any:
        """What `waited` comes to, or None if the process is told to stop first."""
        task = asyncio.ensure_future(waited)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None

    def _server_ended(self, _serving: asyncio.Task[None]) -> None:
        if not self._stop.is_set():
            log.critical("server_ended")
            self.stop(exit_code=1)

    def _take_fleet(self, fleet: Fleet) -> None:
        self._registry.apply(fleet.backends)

    def _notice(self, allowance_id: ids.AllowanceId) -> None:
        if self._borrower is not None:
            self._borrower.notice(allowance_id)

    def _notice_task(self, task_id: str) -> None:
        if self._tasks is not None:
            self._tasks.notice(ids.TaskId(task_id))

    def _cut_suspended(self) -> None:
        if self._running is not None:
            self._running.cut_suspended(self._snapshot)

    def _incarnation_closed(self) -> None:
        """The authority closed this incarnation: end, so that the supervisor starts a new one."""
        log.error("incarnation_closed", extra={"incarnation_id": self._incarnation_id})
        self.stop(exit_code=3)

    def _journal_broke(self) -> None:
        """The disk can't be trusted with this journal any more: end, so that a new one is begun."""
        log.critical("gateway_ends", extra={"reason": self._journal.failure if self._journal else None})
        self.stop(exit_code=4)

    def _health(self) -> tuple[bool, dict[str, Any]]:
        journal = self._journal
        facts: dict[str, Any] = {
            "state": self._state,
            "incarnation_id": self._incarnation_id,
            "catalog": self._snapshot.counts(),
            "catalog_connected": self._feed.connected,
            "catalog_error": self._feed.last_error,
            "journal_writable": journal is not None and journal.writable,
            "journal_failure": journal.failure if journal is not None else None,
            "journal_bytes": journal.held_bytes if journal is not None else None,
            "quota_cut_off": self._borrower.cut_off if self._borrower is not None else None,
            "rates_alone": self._borrower.rates_alone if self._borrower is not None else None,
        }
        return self._state == "serving" and bool(facts["journal_writable"]), facts


def _write_lines(data: bytes) -> None:
    """Write access log lines to standard error, beside the other log's lines."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


async def _main() -> int:
    own = settings()
    logs.configure("gateway", level=own.log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a stranger's broken bytes are not news
    sys.setrecursionlimit(RECURSION_LIMIT)
    process = GatewayProcess(own)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    try:
        return await process.run()
    except (PortTaken, Conflict, OSError) as error:
        log.critical("gateway_failed", extra={"reason": str(error)})
        return 1
    finally:
        log.info("gateway_stopped")


def main() -> int:
    """Run the process; returns its exit code."""
    return_large_blocks()
    return uvloop.run(_main())


if __name__ == "__main__":
    sys.exit(main())
