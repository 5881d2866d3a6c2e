"""The settler's process: `python -m app.bootstrap.settler`. One per machine; SIGTERM ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from pathlib import Path
from typing import Any

from app.core import log as logs
from app.core.clock import SystemClock
from app.core.database import connect_engine
from app.core.probe_server import ProbeServer
from app.core.settings import Settings, settings
from billing.journal.lock import try_lock
from billing.journal.settler import BATCH, Settler

log = logging.getLogger(__name__)

_LOCK_RETRY_S = 0.5
_SHUTDOWN_S = 8.0
_COLLECT_AFTER = (100_000, 50, 100)
"""Records hold no cycles; after each 700, as is usual, the collector walks them for a tenth of all work."""
_WORK_MEM = "48MB"
"""A batch's new rows, which triggers look through, fit in."""
_STATEMENT_TIMEOUT_S = 120.0
"""Long: a batch that was given up is begun anew, with all its rows."""


class SettlerProcess:
    """The settler of this machine with its probe; waits while another one has the machine's lock."""

    def __init__(self, own: Settings, *, batch: int = BATCH) -> None:
        self._own = own
        self._engine = connect_engine(
            own.database_url.get_secret_value(),
            pool_size=2,
            statement_timeout_s=_STATEMENT_TIMEOUT_S,
            work_mem=_WORK_MEM,
        )
        self._settler = Settler(self._engine, folder=own.journal_dir, clock=SystemClock(), batch=batch)
        self._waiting = True

    async def run(self, stop: asyncio.Event) -> None:
        """Settle until `stop`; a batch that runs then is finished, or rolled back and done again later."""
        probe = ProbeServer(health=self._health, metrics=self._settler.metrics.render)
        await probe.start(self._own.metrics_host, self._own.metrics_port)
        descriptor = await asyncio.to_thread(_open_lock, self._own.journal_dir)
        try:
            if await self._take_turn(descriptor, stop):
                await self._settle(stop)
        finally:
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

    async def _settle(self, stop: asyncio.Event) -> None:
        task = asyncio.create_task(self._settler.run(stop, interval_s=self._own.settle_interval_s))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        _, late = await asyncio.wait({task}, timeout=_SHUTDOWN_S)
        stopping.cancel()
        if late:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _health(self) -> tuple[bool, dict[str, Any]]:
        ready, facts = self._settler.health()
        return ready and not self._waiting, {**facts, "waiting_for_other_settler": self._waiting}


def _open_lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    return os.open(folder / "settler.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)


async def main(*, batch: int = BATCH) -> None:
    """Settle until a signal.   batch: most entries of one transaction."""
    own = settings()
    logs.configure("settler", level=own.log_level)
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await SettlerProcess(own, batch=batch).run(stop)
    log.info("settler_stopped")


if __name__ == "__main__":
    asyncio.run(main())
