"""The settler's process: `python -m app.bootstrap.settler`. One per machine, with its hands; SIGTERM ends
them in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.bootstrap.settler_crew import Crew
from app.core import log as logs
from app.core.clock import SystemClock
from app.core.database import connect_engine
from app.core.probe_server import ProbeServer
from app.core.settings import Settings, settings
from billing.journal.lock import try_lock
from billing.journal.settler import BATCH, Settler
from billing.journal.standing import Company

log = logging.getLogger(__name__)

_LOCK_RETRY_S = 0.5
_SHUTDOWN_S = 8.0
_COLLECT_AFTER = (100_000, 50, 100)
"""Records hold no cycles; after each 700, as is usual, the collector walks them for a tenth of all work."""
_WORK_MEM = "48MB"
"""A batch's new rows, which triggers look through, fit in."""
_STATEMENT_TIMEOUT_S = 120.0
"""Long: a batch that was given up is begun anew, with all its rows."""


class CrewBroken(Exception):
    """A hand ended by itself: its journals are nobody's until all begin anew."""


class SettlerProcess:
    """The settler of this machine with its probe; waits while another one has the machine's lock."""

    def __init__(self, own: Settings, *, batch: int = BATCH) -> None:
        self._own = own
        self._batch = batch
        self._crew = Crew()
        self._engine = connect(own)
        self._settler = settler_of(own, self._engine, batch=batch, company=self._crew)
        self._waiting = True

    async def run(self, stop: asyncio.Event) -> None:
        """Settle until `stop`; a batch that runs then is finished, or rolled back and done again later.

        Raises CrewBroken.
        """
        probe = ProbeServer(health=self._health, metrics=self._settler.metrics.render)
        await probe.start(self._own.metrics_host, self._own.metrics_port)
        descriptor = await asyncio.to_thread(_open_lock, self._own.journal_dir)
        try:
            if await self._take_turn(descriptor, stop):
                await self._settle(descriptor, stop)
        finally:
            await self._crew.stop(timeout_s=_SHUTDOWN_S)
            self._settler.close()
            os.close(descriptor)
            await probe.close()
            await self._engine.dispose()

    async def _take_turn(self, descriptor: int, stop: asyncio.Event) -> bool:
        """Wait for the lock of the folder; False if it is time to stop first."""
        while not try_lock(descriptor):
            log.warning("another_settler_runs", extra={"folder": str(self._own.journal_dir)})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOCK_RETRY_S)
            if stop.is_set():
                return False
        self._waiting = False
        log.info("settler_started", extra={"folder": str(self._own.journal_dir)})
        return True

    async def _settle(self, descriptor: int, stop: asyncio.Event) -> None:
        """Settle with all hands until `stop`, or until one of them has ended."""
        await self._crew.start(self._own.settle_processes - 1, batch=self._batch, lock=descriptor)
        broken = asyncio.create_task(self._crew.broken())
        over = asyncio.Event()

        def end(_: asyncio.Task[Any]) -> None:
            over.set()
            self._crew.dismiss()

        tasks = [broken, asyncio.create_task(stop.wait())]
        for task in tasks:
            task.add_done_callback(end)
        await settle(self._settler, over, interval_s=self._own.settle_interval_s)
        is_broken = broken.done() and not stop.is_set()
        for task in tasks:
            task.cancel()
        if is_broken:
            raise CrewBroken("a hand of the settler ended")

    def _health(self) -> tuple[bool, dict[str, Any]]:
        ready, facts = self._settler.health()
        return ready and not self._waiting, {**facts, "waiting_for_other_settler": self._waiting}


def prepare(process: str, own: Settings) -> asyncio.Event:
    """An event that a signal sets, in a process that is ready to hold many records."""
    logs.configure(process, level=own.log_level)
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def connect(own: Settings) -> AsyncEngine:
    """The engine of a settler: a connection for its batch, one beside it."""
    return connect_engine(
        own.database_url.get_secret_value(),
        pool_size=2,
        statement_timeout_s=_STATEMENT_TIMEOUT_S,
        work_mem=_WORK_MEM,
    )


def settler_of(own: Settings, engine: AsyncEngine, *, batch: int, company: Company) -> Settler:
    """The settler of a process."""
    return Settler(engine, folder=own.journal_dir, clock=SystemClock(), batch=batch, company=company)


async def settle(settler: Settler, stop: asyncio.Event, *, interval_s: float) -> None:
    """Settle until `stop`; what runs then has a while to end."""
    task = asyncio.create_task(settler.run(stop, interval_s=interval_s))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    _, late = await asyncio.wait({task}, timeout=_SHUTDOWN_S)
    stopping.cancel()
    if late:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _open_lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    return os.open(folder / "settler.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)


async def main(*, batch: int = BATCH) -> None:
    """Settle until a signal.   batch: most entries of one transaction."""
    own = settings()
    stop = prepare("settler", own)
    await SettlerProcess(own, batch=batch).run(stop)
    log.info("settler_stopped")


if __name__ == "__main__":
    asyncio.run(main())
