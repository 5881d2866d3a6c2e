"""The gateway's side of the journal: appends from the loop, durable in groups by a thread of its own.

The loop only encodes a record and puts it on a queue. The thread takes all that is queued, writes it
with one call, syncs it with one, and tells the loop once for the whole group. A group starts no sooner
than `commit_ms` after the one before: a lone record is durable at once, a busy gateway pays a bounded
number of syncs.

When the disk is full, the file is cut back to its last whole frame (the settler may have read all whole
ones, never a part), so what follows stays readable. Settled records of that group are answered False and
forgotten: their requests end as `lost`, by their last progress row. Admitted and progress records are
kept and tried again, which also finds out that there is space. A failed *sync* is for good: the kernel
has dropped the pages and nobody can know what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from app.core.clock import Clock
from app.core.ids import IncarnationId
from billing.journal import frames, lock
from billing.journal.model import RECORD_VERSION, Admitted, Opened, Progress, Record, Settled, encode

log = logging.getLogger(__name__)

OnDurable = Callable[[bool], None]
_KEPT = (Admitted, Progress)
_RETRY_S = 0.5
_IDLE_S = 3600.0


class _Item(NamedTuple):
    frame: bytes
    on_durable: OnDurable | None
    kept: bool
    """Whether it is tried again after the disk was full."""
    synced: bool
    """Whether its group has to be synced: an admission alone can wait for the next settlement."""


class JournalWriter:
    """The open, locked journal of this process. Methods are called from the event loop's thread only.

    writable: False once the disk refuses; stop admitting. True again when it has space.
    failure: why not, for people.   groups, records: counters since the start.
    """

    def __init__(self, descriptor: int, *, path: Path, clock: Clock, commit_ms: int) -> None:
        self.path = path
        self.writable = True
        self.failure: str | None = None
        self.groups = 0
        self.records = 0
        self._descriptor = descriptor
        self._clock = clock
        self._commit_s = commit_ms / 1000
        self._size = os.fstat(descriptor).st_size
        self._queue: deque[_Item] = deque()
        self._kept: list[_Item] = []
        self._broken = False
        self._closing = False
        self._asleep = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls, folder: Path, *, incarnation_id: IncarnationId, clock: Clock, commit_ms: int
    ) -> JournalWriter:
        """A new journal in its place: locked before it has its name, its `Opened` record durable.

        Raises OSError if the folder can't be written, FileExistsError if the id was used before.
        """
        opened = Opened(
            version=RECORD_VERSION,
            incarnation_id=incarnation_id,
            at_ms=clock.now_ms(),
            host=socket.gethostname(),
        )
        descriptor = lock.create_locked(folder, incarnation_id, head=frames.pack(encode(opened)))
        return cls(descriptor, path=lock.path_of(folder, incarnation_id), clock=clock, commit_ms=commit_ms)

    @property
    def backlog(self) -> int:
        """Records that are queued or kept, not yet written."""
        return len(self._queue) + len(self._kept)

    def append(self, record: Record) -> None:
        """Queue a record that nobody waits for: admitted, progress, refused. Dropped after `close`."""
        if not self._closing:
            kept = isinstance(record, _KEPT)
            self._put(_Item(frames.pack(encode(record)), None, kept, isinstance(record, Progress)))

    def settle(self, record: Settled, on_durable: OnDurable) -> None:
        """Queue the end of a request; `on_durable` is called once, in the loop, never from within.

        It gets True after the record is on the disk, False if the disk failed or the journal is closed.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._closing:
            self._loop.call_soon(on_durable, False)
        else:
            self._put(_Item(frames.pack(encode(record)), on_durable, kept=False, synced=True))

    async def close(self) -> None:
        """Write and sync what is queued, tell its callers, release the lock. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._stop.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        os.close(self._descriptor)
        await asyncio.sleep(0)  # the last group's callbacks run before the caller goes on

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        if self._asleep:
            self._asleep = False
            self._wake.set()

    # The thread. `_asleep` is set before the queue is looked at a last time, and read after a record
    # was queued: one of the two sides sees the other.

    def _run(self) -> None:
        while self._await_work():
            started = self._clock.monotonic()
            self._commit_or_break()
            self._stop.wait(max(0.0, self._commit_s - (self._clock.monotonic() - started)))
        if self._kept:
            self._commit_or_break()

    def _await_work(self) -> bool:
        """True when there is a group to write, False when the journal is closed and all is written."""
        while not self._queue:
            if self._closing:
                return False
            self._wake.clear()
            self._asleep = True
            if not self._queue and not self._closing:
                woken = self._wake.wait(_IDLE_S if self.writable or self._broken else _RETRY_S)
                if not woken and not self.writable and not self._broken:
                    return True
            self._asleep = False
        return True

    def _commit_or_break(self) -> None:
        try:
            if not self._broken:
                self._commit()
        except Exception as error:  # the thread's rim: it stays, to answer whoever waits
            log.critical("journal_thread_failed", exc_info=error)
            self._break(f"the journal's thread failed: {error!r}")
        if self._broken:
            self._refuse_all()

    def _commit(self) -> None:
        group = self._kept + [self._queue.popleft() for _ in range(len(self._queue))]
        self._kept = []
        if not group:
            probe = encode(Progress(at_ms=self._clock.now_ms(), readings=()))
            group = [_Item(frames.pack(probe), None, kept=False, synced=False)]
        written = self._write(group)
        durable = self._sync(group[:written])
        self._kept = [item for item in group[written:] if item.kept]
        self.groups += 1
        self.records += written
        self._tell(group, written if durable else 0)

    def _write(self, group: list[_Item]) -> int:
        """How many items of the group are whole in the file; after fewer than all, it is cut to those."""
        pieces = [item.frame for item in group]
        data = memoryview(b"".join(pieces))
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError as error:
            return self._cut(pieces, done, error=error)
        self._size += done
        if not self.writable:
            self.writable, self.failure = True, None
            log.warning("journal_writable_again")
        return len(group)

    def _cut(self, pieces: list[bytes], done: int, *, error: OSError) -> int:
        whole = frames.complete_prefix(pieces, done)
        self._size += sum(map(len, pieces[:whole]))
        if self.writable:
            log.error("journal_unwritable", extra={"reason": str(error), "file": self.path.name})
        self.writable, self.failure = False, f"the journal can't be written: {error.strerror}"
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as again:
            self._break(f"a torn frame can't be cut off the journal: {again.strerror}")
        return whole

    def _sync(self, written: list[_Item]) -> bool:
        if not any(item.synced for item in written):
            return True
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._break(f"the journal can't be synced: {error.strerror}")
            return False
        return True

    def _break(self, reason: str) -> None:
        self._broken, self.writable, self.failure = True, False, reason
        log.critical("journal_broken", extra={"reason": reason, "file": self.path.name})

    def _refuse_all(self) -> None:
        group = self._kept + [self._queue.popleft() for _ in range(len(self._queue))]
        self._kept = []
        self._tell(group, 0)

    def _tell(self, group: list[_Item], durable: int) -> None:
        """One call into the loop for the whole group: the first `durable` items are on the disk."""
        waiting = [(item.on_durable, at < durable) for at, item in enumerate(group) if item.on_durable]
        if not waiting or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(_answer, waiting)
        except RuntimeError:
            log.error("journal_callers_gone", extra={"records": len(waiting)})


def _answer(waiting: list[tuple[OnDurable, bool]]) -> None:
    for on_durable, durable in waiting:
        on_durable(durable)
