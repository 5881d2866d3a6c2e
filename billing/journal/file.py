"""An open journal file: whole frames or none, whatever the disk says.

When the disk is full, the file is cut back to its last whole frame (the settler may have read all whole
ones, never a part), so what follows stays readable. A failed *sync* is for good: the kernel has dropped
the pages and nobody can know what is on the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from billing.journal import frames

log = logging.getLogger(__name__)


class JournalFile:
    """Owns the descriptor, and with it the lock.

    writable: False while the disk has no space, True again after a write that went well.
    broken: for good.   failure: why, for people.
    """

    def __init__(self, descriptor: int, *, path: Path) -> None:
        self.path = path
        self.writable = True
        self.broken = False
        self.failure: str | None = None
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def write(self, pieces: Sequence[bytes]) -> int:
        """How many of the frames are whole in the file (not yet on the disk); it ends with the last one."""
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
        return len(pieces)

    def sync(self) -> bool:
        """Bring to the disk what was written before the call; False if it can't be, for good."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self.break_off(f"the journal can't be synced: {error.strerror}")
            return False
        return True

    def break_off(self, reason: str) -> None:
        """Never write again."""
        self.broken, self.writable, self.failure = True, False, reason
        log.critical("journal_broken", extra={"reason": reason, "file": self.path.name})

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

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
