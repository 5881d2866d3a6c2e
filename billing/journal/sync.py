"""Brings what a journal has written to the disk, in groups: one sync for all that was written before it.

The writer's port is `Syncer`. The one of a gateway is a thread: a sync takes milliseconds, for which the
loop can't wait. A group starts no sooner than `commit_s` after the one before: a lone record is durable
at once, a busy gateway pays a bounded number of syncs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from app.core.clock import Clock
from billing.journal.file import JournalFile

log = logging.getLogger(__name__)

OnDurable = Callable[[bool], None]


class Syncer(Protocol):
    """Answers written records once they are on the disk. Called from the loop's thread.

    groups: syncs since the start.   backlog: records that wait for theirs.
    """

    groups: int

    @property
    def backlog(self) -> int: ...

    def add(self, waiting: Sequence[OnDurable | None]) -> None:
        """Records that are written now. Each is answered once, in the loop, never from within this call:
        True after a sync that began later, False if it failed. None: nobody asks, it is synced all the same.
        """

    async def close(self) -> None:
        """Sync and answer what waits, and take no more."""


OpenSyncer = Callable[[JournalFile], Syncer]


def answer(waiting: Sequence[tuple[OnDurable | None, bool]]) -> None:
    """Tell each caller; one that fails does not keep the answers of others."""
    for on_durable, durable in waiting:
        try:
            if on_durable is not None:
                on_durable(durable)
        except Exception:  # the rim of the callers: the others of the group wait for their own answers
            log.exception("journal_caller_failed")


class SyncThread:
    """A `Syncer` that syncs in a thread and tells the loop once for the whole group."""

    def __init__(self, file: JournalFile, *, clock: Clock, commit_s: float) -> None:
        self.groups = 0
        self._file = file
        self._clock = clock
        self._commit_s = commit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsynced: deque[OnDurable | None] = deque()
        self._asleep = False
        self._closing = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return len(self._unsynced)

    def add(self, waiting: Sequence[OnDurable | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsynced.extend(waiting)
        if self._asleep:
            self._asleep = False
            self._wake.set()

    async def close(self) -> None:
        self._closing = True
        self._stop.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    # The thread. `_asleep` is set before the deque is looked at a last time, and read after records were
    # added: one of the two sides sees the other.

    def _run(self) -> None:
        while self._await_work():
            started = self._clock.monotonic()
            self._sync_group()
            self._stop.wait(max(0.0, self._commit_s - (self._clock.monotonic() - started)))

    def _sync_group(self) -> None:
        """Sync what waits. In a function of its own: the sleeping thread must hold on to no caller."""
        group = [self._unsynced.popleft() for _ in range(len(self._unsynced))]
        self._tell(group, durable=self._sync())
        self.groups += 1

    def _await_work(self) -> bool:
        """True when something waits for a sync, False when the journal is closed and nothing does."""
        while not self._unsynced:
            if self._closing:
                return False
            self._wake.clear()
            self._asleep = True
            if not self._unsynced and not self._closing:
                self._wake.wait()
            self._asleep = False
        return True

    def _sync(self) -> bool:
        try:
            return not self._file.broken and self._file.sync()
        except Exception as error:  # noqa: BLE001 - the thread stays, to answer whoever waits
            self._file.break_off(f"the journal's thread failed: {error!r}")
            return False

    def _tell(self, group: Sequence[OnDurable | None], *, durable: bool) -> None:
        """One call into the loop for the whole group."""
        waiting = [(on_durable, durable) for on_durable in group if on_durable is not None]
        if not waiting or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(answer, waiting)
        except RuntimeError:
            log.error("journal_callers_gone", extra={"records": len(waiting)})
