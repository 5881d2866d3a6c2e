"""The settler's side of one journal file: whole frames only, and only those that it has synced itself.

The writer's own sync says that a settlement is on the disk; the settler posts nothing on the strength
of what another process may or may not have synced, or a power cut could take back what was posted.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from app.core.ids import IncarnationId
from billing.journal import lock
from billing.journal.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, Tail, is_torn_for_good, unpack

_CHUNK_BYTES = 2 * (MAX_PAYLOAD_BYTES + HEADER_BYTES)


class State(Enum):
    """live: its writer has the lock.   dead: we have it.   stopped: unreadable from `offset` on."""

    LIVE = "live"
    DEAD = "dead"
    STOPPED = "stopped"


class JournalTail:
    """An open journal, read from `offset` on. Its methods block: call them in a thread.

    more: the last read did not reach the end of the file.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        """Raises FileNotFoundError if it was archived meanwhile."""
        self.path = path
        self.incarnation_id = IncarnationId(path.name.removesuffix(lock.SUFFIX))
        self.offset = offset
        self.state = State.LIVE
        self.stopped_because = ""
        self.more = False
        self._suspect: bytes | None = None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> list[Frame]:
        """The next whole frames, durable; none at the end of the file, or when it is stopped.

        Bytes that no writer wrote stop a live file only when they are there twice: the writer may just
        have been cutting off a torn frame.
        """
        if self.state is State.STOPPED:
            return []
        data = os.pread(self._descriptor, _CHUNK_BYTES, self.offset)
        self.more = len(data) == _CHUNK_BYTES
        frames, tail = unpack(data, offset=self.offset)
        if frames:
            os.fdatasync(self._descriptor)
            self._suspect = None
            self.offset = frames[-1].end
        elif tail is Tail.CORRUPT or self.more:  # no record is so long: it is a hole, with more behind it
            self._suspect_or_stop(data)
        elif tail is Tail.TORN and self.state is State.DEAD and not is_torn_for_good(data):
            self.stop("a record's length is corrupt")
        return frames

    def try_bury(self) -> bool:
        """True once the lock proves the writer dead. Its last records may still have to be read."""
        if self.state is State.LIVE and lock.try_lock(self._descriptor):
            self.state = State.DEAD
        return self.state is State.DEAD

    def stop(self, reason: str) -> None:
        """Read no further: a copy of the rest is put aside, the file stays, its leases stay counted."""
        self.state, self.stopped_because = State.STOPPED, reason
        folder = self.path.parent / "quarantine"
        copy = folder / f"{self.incarnation_id}.{self.offset}"
        if copy.exists():
            return
        folder.mkdir(exist_ok=True, mode=0o750)
        draft = copy.with_suffix(".new")
        with draft.open("wb") as file:
            at = self.offset
            while chunk := os.pread(self._descriptor, _CHUNK_BYTES, at):
                file.write(chunk)
                at += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(copy)
        lock.sync_folder(folder)

    def archive(self, *, at_ms: int) -> None:
        """Move the posted journal of a dead process to `closed/` and let go of it."""
        folder = self.path.parent / "closed"
        folder.mkdir(exist_ok=True, mode=0o750)
        os.utime(self.path, (at_ms // 1000, at_ms // 1000))
        self.path.rename(folder / self.path.name)
        lock.sync_folder(folder)
        lock.sync_folder(self.path.parent)
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def _suspect_or_stop(self, data: bytes) -> None:
        if self.state is State.DEAD or self._suspect == data:
            self.stop("its bytes are corrupt")
        self._suspect = data


def remove_closed(folder: Path, *, before_ms: int) -> int:
    """Remove journals that were archived before a time; returns how many."""
    old = [path for path in folder.glob(f"closed/*{lock.SUFFIX}") if path.stat().st_mtime < before_ms // 1000]
    for path in old:
        path.unlink()
    return len(old)
