"""The settler's side of one journal file: whole frames only, and only those that it has synced itself.

The writer's own sync says that a settlement is on the disk; the settler posts nothing on the strength
of what another process may or may not have synced, or a power cut could take back what was posted. Nor
does it trust a second sync after a failed one: the kernel reports a lost write once, and calls the page
clean from then on. Such a journal waits until its writer is gone (whose own sync fails as well), is
written anew, page by page, and read from that copy.

Bytes that no writer wrote are passed over, once it is sure that they stay: what follows them is read.
A file that is shorter than what is known of it was cut by somebody: that is a damage too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from app.core.ids import IncarnationId
from billing.journal import lock
from billing.journal.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, Tail, find_next, unpack

log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 * (MAX_PAYLOAD_BYTES + HEADER_BYTES)
"""Any frame that begins in the first three quarters of a chunk ends in it. The larger, the fewer sums are
written again while there is much to catch up with."""

_HEAD_BYTES = 4096
"""The first record lies within."""


class State(Enum):
    """live: its writer has the lock.   dead: we have it.   stopped: not to be read from `offset` on."""

    LIVE = "live"
    DEAD = "dead"
    STOPPED = "stopped"


class Damage(NamedTuple):
    """Bytes from `start` to `end` of the file that no writer wrote, or that are not there any more."""

    start: int
    end: int


class JournalTail:
    """An open journal, read from `offset` on. Its methods block: call them in a thread.

    more: the last read did not reach the end of the file.   damage: what lies at `offset` and has to be
    passed over.   doubtful: a sync failed, so what was written before may not be on the disk.
    """

    def __init__(
        self, path: Path, *, offset: int = 0, known: int = 0, sync: Callable[[int], None] = os.fdatasync
    ) -> None:
        """known: how many bytes it had at least.   Raises FileNotFoundError if it was archived meanwhile."""
        self.path = path
        self.incarnation_id = IncarnationId(path.name.removesuffix(lock.SUFFIX))
        self.offset = offset
        self.state = State.LIVE
        self.stopped_because = ""
        self.more = False
        self.damage: Damage | None = None
        self.doubtful = False
        self._sync = sync
        self._least = max(offset, known)
        self._suspect: Damage | None = None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def in_place(self) -> bool:
        """False once its name is gone or another file's; it is still read, through its descriptor."""
        return lock.names(self.path, self._descriptor)

    def head(self) -> Frame | None:
        """The first frame of the file, wherever it is read from; None if it is not whole."""
        frames, _ = unpack(os.pread(self._descriptor, _HEAD_BYTES, 0), offset=0)
        return frames[0] if frames else None

    def read(self) -> list[Frame]:
        """The next whole frames, durable; none at the end of the file, at a damage, or when it is stopped.

        Raises OSError if they can't be made durable; they are given later, from a copy.
        """
        if self.doubtful and self.state is State.DEAD:
            self._write_anew()
        if self.doubtful or self.damage is not None or self.state is State.STOPPED:
            return []
        data = os.pread(self._descriptor, _CHUNK_BYTES, self.offset)
        self.more = len(data) == _CHUNK_BYTES
        frames, tail = unpack(data, offset=self.offset)
        if frames:
            self._make_durable()
            self._suspect = None
            self.offset = frames[-1].end
            self._least = max(self._least, self.offset)
            return frames
        if tail is not Tail.CLEAN:
            self._look_beyond(tail)
        if self.damage is None:
            self._look_at_length()
        return []

    def pass_over(self) -> None:
        """Put a copy of the damage aside, and read on behind it."""
        damage = self.damage
        assert damage is not None
        self._put_aside(damage)
        self.offset, self.damage, self._suspect = max(damage.end, self.offset), None, None

    def try_bury(self) -> bool:
        """True once the lock proves the writer dead. Its last records may still have to be read."""
        if self.state is State.LIVE and lock.try_lock(self._descriptor):
            self.state = State.DEAD
        return self.state is State.DEAD

    def stop(self, reason: str) -> None:
        """Read no further: a copy of the rest is put aside, the file stays, its leases stay counted."""
        self.state, self.stopped_because = State.STOPPED, reason
        self._put_aside(Damage(self.offset, os.fstat(self._descriptor).st_size))

    def archive(self, folder_name: str, *, at_ms: int) -> None:
        """Move the posted journal of a dead process into a folder beside it and let go of it.

        Of one that is not in its place any more, a copy: under its name may lie another's.
        """
        folder = self.path.parent / folder_name
        folder.mkdir(exist_ok=True, mode=0o750)
        source = self.path
        if not self.in_place:
            span = Damage(0, os.fstat(self._descriptor).st_size)
            source = self._copy(span, folder / f"{self.path.name}.new", base=0)
        os.utime(source, (at_ms // 1000, at_ms // 1000))
        source.rename(folder / self.path.name)
        lock.sync_folder(folder)
        lock.sync_folder(self.path.parent)
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def _make_durable(self) -> None:
        try:
            self._sync(self._descriptor)
        except OSError as error:
            self.doubtful = True
            facts = {"incarnation_id": self.incarnation_id, "offset": self.offset}
            log.critical("journal_doubtful", extra={**facts, "reason": str(error)})
            raise

    def _look_beyond(self, tail: Tail) -> None:
        """Tell a damage from an end that is still being written, or was torn by a death.

        A torn end has nothing after it. Of a live file a damage is one only if it is met twice: the
        writer may just have been cutting off what a full disk tore.
        """
        found = self._next_frame()
        dead = self.state is State.DEAD
        if found is None and (not dead or tail is Tail.TORN):
            return
        end = os.fstat(self._descriptor).st_size if found is None else found
        suspect = Damage(self.offset, end)
        if dead or suspect == self._suspect:
            self.damage = suspect
        self._suspect = suspect

    def _look_at_length(self) -> None:
        """Tell an end from where somebody cut the file. Told once, whatever is written to it later.

        A journal is durable with its first record before it has its name: a dead one without it was cut.
        """
        size = os.fstat(self._descriptor).st_size
        if size < self._least:
            self.damage, self._least = Damage(min(self.offset, size), self._least), 0
        elif self.offset == 0 and self.state is State.DEAD:
            self.damage = Damage(0, max(size, 1))

    def _next_frame(self) -> int | None:
        """The offset of the next complete frame behind `offset`; None if there is none so far."""
        at = self.offset + 1
        while (at := self._next_data(at)) >= 0:
            data = os.pread(self._descriptor, _CHUNK_BYTES, at)
            found = find_next(data, 0)
            if found is not None:
                return at + found
            if len(data) < _CHUNK_BYTES:
                return None
            at += _CHUNK_BYTES // 2
        return None

    def _next_data(self, at: int) -> int:
        """`at`, or the end of the hole that it lies in; -1 behind the last byte."""
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return -1
            raise

    def _put_aside(self, span: Damage) -> None:
        """A durable copy of a span in `quarantine/`, once; its zeros are holes."""
        folder = self.path.parent / "quarantine"
        copy = folder / f"{self.incarnation_id}.{span.start}"
        if copy.exists():
            return
        folder.mkdir(exist_ok=True, mode=0o750)
        self._copy(span, copy.with_suffix(".new"), base=span.start).rename(copy)
        lock.sync_folder(folder)

    def _write_anew(self) -> None:
        """Replace the file of a dead writer by a durable copy of what was not read yet, and read that."""
        size = os.fstat(self._descriptor).st_size
        draft = self._copy(Damage(self.offset, size), self.path.with_suffix(".copy"), base=0)
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        lock.try_lock(descriptor)
        if self.in_place:
            draft.rename(self.path)
        else:
            draft.unlink()
        lock.sync_folder(self.path.parent)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self.doubtful = False
        log.warning("journal_written_anew", extra={"incarnation_id": self.incarnation_id})

    def _copy(self, span: Damage, draft: Path, *, base: int) -> Path:
        """The bytes of a span in a file of their own, durable; what lay at `base` lies at its beginning."""
        with draft.open("wb") as file:
            at = span.start
            while at < span.end and (at := self._next_data(at)) >= 0 and at < span.end:
                chunk = os.pread(self._descriptor, min(_CHUNK_BYTES, span.end - at), at)
                file.seek(at - base)
                file.write(chunk)
                at += len(chunk)
            file.truncate(span.end - base)
            file.flush()
            os.fsync(file.fileno())
        return draft


def remove_closed(folder: Path, *, before_ms: int) -> int:
    """Remove journals that were archived before a time; returns how many. Others may do the same."""
    removed = 0
    for path in folder.glob(f"closed/*{lock.SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before_ms // 1000:
                path.unlink()
                removed += 1
    return removed
