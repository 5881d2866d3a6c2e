"""An open journal file: whole frames or none, whatever the disk says.

While it is short of room nothing more should be admitted, but what runs is still written (`room.py`).
When the disk is full, the file is cut back to its last whole frame (the settler may have read all whole
ones, never a part), so what follows stays readable. A failed *sync* is for good: the kernel has dropped
the pages and nobody can know what is on the disk. So is a file that somebody removed, replaced or cut:
what is written to it is on the disk, and no settler will ever read it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from billing.journal import frames, lock, room
from billing.journal.room import UNLIMITED

log = logging.getLogger(__name__)

_MEASURE_BYTES = 1024 * 1024


class JournalFile:
    """Owns the descriptor, and with it the lock.

    writable: False while the disk has no space, True again after a write that went well.
    lack: why there is no room to admit more, as last measured, or None.
    broken: for good.   failure: why, for people.   on_broken: called once, from the thread that found out.
    """

    def __init__(self, descriptor: int, *, path: Path) -> None:
        self.path = path
        self.writable = True
        self.broken = False
        self.lack: str | None = None
        self.limits = UNLIMITED
        self.failure: str | None = None
        self.on_broken: Callable[[], None] | None = None
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._unmeasured = 0

    @property
    def held_bytes(self) -> int:
        """What it takes of the disk now; 0 once it is closed."""
        return 0 if self._descriptor < 0 else room.held_bytes(self._descriptor)

    def write(self, pieces: Sequence[bytes]) -> int:
        """How many of the frames are whole in the file (not yet on the disk); it ends with the last one."""
        if not pieces:
            return 0  # which says nothing of the disk
        data = memoryview(b"".join(pieces))
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError as error:
            return self._cut(pieces, done, error=error)
        self._size += done
        self._unmeasured += done
        if self._unmeasured >= _MEASURE_BYTES:
            self.measure()
        if not self.writable:
            self.writable, self.failure = True, None
            log.warning("journal_writable_again")
        return len(pieces)

    def measure(self) -> None:
        """See whether there is room to admit more."""
        self._unmeasured = 0
        was, self.lack = self.lack, room.lack(self._descriptor, self.limits)
        if (was is None) != (self.lack is None):
            log.warning("journal_room", extra={"lack": self.lack, "file": self.path.name})

    def sync(self) -> bool:
        """Bring to the disk what was written before the call, where its settler finds it; False if it can't
        be, for good.
        """
        size = self._size
        try:
            os.fdatasync(self._descriptor)
            flaw = self._flaw(size)
        except OSError as error:
            flaw = f"the journal can't be synced: {error.strerror}"
        if flaw is not None:
            self.break_off(flaw)
        return flaw is None

    def break_off(self, reason: str) -> None:
        """Never write again."""
        was, self.broken = self.broken, True
        self.writable, self.failure = False, reason
        log.critical("journal_broken", extra={"reason": reason, "file": self.path.name})
        if self.on_broken is not None and not was:
            self.on_broken()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        self._descriptor = -1

    def _flaw(self, size: int) -> str | None:
        """What somebody else did to the file, which had `size` bytes at least."""
        if not lock.names(self.path, self._descriptor):
            return "the journal's file was removed or replaced"
        return "the journal's file was cut" if os.fstat(self._descriptor).st_size < size else None

    def _cut(self, pieces: Sequence[bytes], done: int, *, error: OSError) -> int:
        whole = frames.complete_prefix(pieces, done)
        self._size += sum(map(len, pieces[:whole]))
        if self.writable:
            log.error("journal_unwritable", extra={"reason": str(error), "file": self.path.name})
        self.writable, self.failure = False, f"the journal can't be written: {error.strerror}"
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as again:
            self.break_off(f"a torn frame can't be cut off the journal: {again.strerror}")
        return whole
