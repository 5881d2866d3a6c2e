"""The gateway's side of the journal: written at once from the loop, durable in groups by a thread.

Records of one turn of the loop are written to the file by one call at the turn's end, so a request's
admission is in the kernel's hands before the loop can see a byte of its answer: a killed process loses
none that a client or an engine's answer could know of (a power cut may: hence the sync). The thread
syncs what was written and tells the loop once for the whole group. A group starts no sooner than
`commit_ms` after the one before: a lone record is durable at once, a busy gateway pays a bounded
number of syncs.

When the disk is full, settled records are answered False and forgotten: their requests end as `lost`,
by their last progress row. Admitted and progress records are kept and tried again, which also finds
out that there is space.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from app.core.clock import Clock
from app.core.ids import IncarnationId
from billing.journal import frames, lock
from billing.journal.file import JournalFile
from billing.journal.model import RECORD_VERSION, Admitted, Opened, Progress, Record, Settled, encode

log = logging.getLogger(__name__)

OnDurable = Callable[[bool], None]
_KEPT = (Admitted, Progress)
_RETRY_S = 0.5


class _Item(NamedTuple):
    frame: bytes
    on_durable: OnDurable | None
    kept: bool
    """Whether it is tried again after the disk was full."""
    synced: bool
    """Whether it has to be synced: an admission alone can wait for the next settlement."""


class JournalWriter:
    """The open, locked journal of this process. Methods are called from the event loop's thread only.

    groups: syncs since the start.   records: those written.
    """

    def __init__(self, descriptor: int, *, path: Path, clock: Clock, commit_ms: int) -> None:
        self.path = path
        self.groups = 0
        self.records = 0
        self._file = JournalFile(descriptor, path=path)
        self._clock = clock
        self._commit_s = commit_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: list[_Item] = []
        self._flushing = False
        self._closing = False
        self._unsynced: deque[_Item] = deque()
        self._asleep = False
        self._wake = threading.Event()
        self._stop = threading.Event()
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
    def writable(self) -> bool:
        """False once the disk refuses: stop admitting. True again when it has space."""
        return self._file.writable

    @property
    def failure(self) -> str | None:
        """Why it is not writable, for people."""
        return self._file.failure

    @property
    def backlog(self) -> int:
        """Records that are not yet written, or written and waited for, but not yet on the disk."""
        return len(self._queue) + len(self._unsynced)

    def append(self, record: Record) -> None:
        """Write a record that nobody waits for: admitted, progress, refused. Dropped after `close`."""
        if not self._closing:
            kept = isinstance(record, _KEPT)
            self._put(_Item(frames.pack(encode(record)), None, kept, isinstance(record, Progress)))

    def settle(self, record: Settled, on_durable: OnDurable) -> None:
        """Write the end of a request; `on_durable` is called once, in the loop, never from within.

        It gets True after the record is on the disk, False if the disk failed or the journal is closed.
        """
        if self._closing:
            asyncio.get_running_loop().call_soon(on_durable, False)
        else:
            self._put(_Item(frames.pack(encode(record)), on_durable, kept=False, synced=True))

    async def close(self) -> None:
        """Write and sync what is queued, tell its callers, release the lock. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._flush()
        self._stop.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        if not self._file.broken:
            self._file.sync()
        self._file.close()
        await asyncio.sleep(0)  # the last group's callbacks run before the caller goes on

    # The loop.

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        if not self._flushing:
            self._flushing = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what this turn has queued; what must be durable goes to the thread."""
        self._flushing = False
        group, self._queue = self._queue, []
        if self._file.broken:
            _answer([(item.on_durable, False) for item in group])
            return
        written = self._file.write([item.frame for item in group])
        self.records += written
        waiting = [item for item in group[:written] if item.synced]
        if waiting:
            self._unsynced.extend(waiting)
            if self._asleep:
                self._asleep = False
                self._wake.set()
        if written < len(group) or not self._file.writable:
            self._keep(group[written:])

    def _keep(self, unwritten: Sequence[_Item]) -> None:
        self._queue = [item for item in unwritten if item.kept]
        _answer([(item.on_durable, False) for item in unwritten])
        if not self._flushing and self._loop is not None and not self._closing:
            self._flushing = True
            self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        """See whether there is space: by what was kept, or by a record that says nothing."""
        if self._closing:
            return
        if not self._queue:
            probe = Progress(at_ms=self._clock.now_ms(), readings=())
            self._queue.append(_Item(frames.pack(encode(probe)), None, kept=False, synced=False))
        self._flush()

    # The thread. `_asleep` is set before the deque is looked at a last time, and read after items were
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

    def _tell(self, group: Sequence[_Item], *, durable: bool) -> None:
        """One call into the loop for the whole group."""
        waiting = [(item.on_durable, durable) for item in group if item.on_durable]
        if not waiting or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(_answer, waiting)
        except RuntimeError:
            log.error("journal_callers_gone", extra={"records": len(waiting)})


def _answer(waiting: Sequence[tuple[OnDurable | None, bool]]) -> None:
    for on_durable, durable in waiting:
        try:
            if on_durable is not None:
                on_durable(durable)
        except Exception:  # the rim of the callers: the others of the group wait for their own answers
            log.exception("journal_caller_failed")
