"""The gateway's side of the journal: written at once from the loop, durable in groups by a thread.

Records of one turn of the loop are written to the file by one call at the turn's end, so a request's
admission is in the kernel's hands before the loop can see a byte of its answer: a killed process loses
none that a client or an engine's answer could know of (a power cut may: hence the sync, `sync.py`).

When the disk is full, settlements are answered False and kept, as what they are then: requests whose
client never got the end. They are tried again, with the admissions and the last progress row, which also
finds out that there is space. Short of room (`room.py`), it still takes whatever ends a running request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from app.core.clock import Clock
from app.core.ids import IncarnationId
from billing.journal import frames, hole, lock
from billing.journal.file import JournalFile
from billing.journal.model import (
    RECORD_VERSION,
    Admitted,
    Opened,
    Progress,
    Record,
    Refused,
    Settled,
    encode,
)
from billing.journal.room import UNLIMITED, Limits
from billing.journal.sync import OnDurable, OpenSyncer, Syncer, SyncThread, answer
from billing.journal.undelivered import undelivered

_RETRY_S = 0.5
_UNSYNCED = (Admitted, Refused)
"""An admission alone can wait for the next settlement."""


class _Item(NamedTuple):
    frame: bytes
    record: Record
    on_durable: OnDurable | None = None


class OpenFile(Protocol):
    """Takes an open, locked descriptor over."""

    def __call__(self, descriptor: int, *, path: Path) -> JournalFile: ...


class JournalWriter:
    """The open, locked journal of this process. Methods are called from the event loop's thread only.

    records: those written.   on_broken: called once, in the loop, when it is broken for good.
    """

    def __init__(self, file: JournalFile, *, syncer: Syncer, clock: Clock) -> None:
        self.path = file.path
        self.records = 0
        self._file = file
        self._syncer = syncer
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: list[_Item] = []
        self._flushing = False
        self._retrying = False
        self._closing = False
        self.on_broken: Callable[[], None] | None = None
        file.on_broken = self._broke

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        incarnation_id: IncarnationId,
        clock: Clock,
        commit_ms: int,
        limits: Limits = UNLIMITED,
        open_file: OpenFile = JournalFile,
        open_syncer: OpenSyncer | None = None,
    ) -> JournalWriter:
        """A new journal in its place: locked before it has its name, its `Opened` record durable.

        limits: of its room; where the disk keeps what is posted, that of the file itself can't hold.
        open_file, open_syncer: the disk, for a simulation; a real file and a thread by default.
        Raises OSError if the folder can't be written, FileExistsError if the id was used before.
        """
        opened = Opened(
            version=RECORD_VERSION,
            incarnation_id=incarnation_id,
            at_ms=clock.now_ms(),
            host=socket.gethostname(),
        )
        descriptor = lock.create_locked(folder, incarnation_id, head=frames.pack(encode(opened)))
        file = open_file(descriptor, path=lock.path_of(folder, incarnation_id))
        file.limits = limits if hole.can_punch(descriptor) else limits._replace(max_bytes=0)
        file.measure()
        thread = partial(SyncThread, clock=clock, commit_s=commit_ms / 1000)
        writer = cls(file, syncer=(open_syncer or thread)(file), clock=clock)
        if not writer.writable:  # no request may come to wake it: who is short of room gets none
            writer._loop = asyncio.get_running_loop()
            writer._keep(())
        return writer

    @property
    def groups(self) -> int:
        """Syncs since the start."""
        return self._syncer.groups

    @property
    def writable(self) -> bool:
        """False once the disk refuses or room is short: stop admitting. True again when it has space."""
        return self._file.writable and self._file.lack is None

    @property
    def failure(self) -> str | None:
        """Why it is not writable, for people."""
        return self._file.failure or self._file.lack

    @property
    def held_bytes(self) -> int:
        """What the journal takes of the disk now."""
        return self._file.held_bytes

    @property
    def backlog(self) -> int:
        """Records that are not yet written, or written and waited for, but not yet on the disk."""
        return len(self._queue) + self._syncer.backlog

    def append(self, record: Record) -> None:
        """Write a record that nobody waits for: admitted, progress, refused. Dropped after `close`."""
        if not self._closing:
            self._put(_Item(frames.pack(encode(record)), record))

    def settle(self, record: Settled, on_durable: OnDurable) -> None:
        """Write the end of a request; `on_durable` is called once, in the loop, never from within.

        It gets True after the record is on the disk, False if the disk failed or the journal is closed.
        """
        if self._closing:
            asyncio.get_running_loop().call_soon(on_durable, False)
        else:
            self._put(_Item(frames.pack(encode(record)), record, on_durable))

    async def close(self) -> None:
        """Write and sync what is queued, tell its callers, release the lock. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._flush()
        await self._syncer.close()
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
            answer([(item.on_durable, False) for item in group])
            return
        written = self._file.write([item.frame for item in group])
        self.records += written
        if waiting := [item.on_durable for item in group[:written] if not isinstance(item.record, _UNSYNCED)]:
            self._syncer.add(waiting)
        if written < len(group) or not self.writable:
            self._keep(group[written:])

    def _keep(self, unwritten: Sequence[_Item]) -> None:
        """Keep what has to be in the file later, answer who waits, and look again soon."""
        self._queue = [*_to_keep(unwritten), *self._queue]
        answer([(item.on_durable, False) for item in unwritten])
        if not self._retrying and self._loop is not None and not self._closing:
            self._retrying = True
            self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        """See whether there is space: by what was kept, or by a record that says nothing."""
        self._retrying = False
        if self._closing:
            return
        self._file.measure()
        if not self._file.writable and not self._queue:
            probe = Progress(at_ms=self._clock.now_ms(), readings=())
            self._queue.append(_Item(frames.pack(encode(probe)), probe))
        self._flush()

    def _broke(self) -> None:
        """From whatever thread found out."""
        if self.on_broken is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self.on_broken)


def _to_keep(unwritten: Sequence[_Item]) -> Iterator[_Item]:
    """Admissions, what settlements become, and the last progress row: it tells more than those before."""
    last = next((item for item in reversed(unwritten) if isinstance(item.record, Progress)), None)
    for item in unwritten:
        match item.record:
            case Settled() as settled:
                late = undelivered(settled) if item.on_durable is not None else settled
                yield _Item(frames.pack(encode(late)), late)
            case Admitted():
                yield item
    if last is not None:
        yield last
