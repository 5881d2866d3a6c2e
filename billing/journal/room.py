"""How much room a journal may take, so that what runs can always be recorded to its end.

While PostgreSQL is away a journal only grows; and a disk that is full takes no settlement. So admission
ends before: when the file holds more than its share, or the disk has less left than a reserve.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_BLOCK_BYTES = 512
"""Of `st_blocks`, whatever the file system's own block is."""


class Limits(NamedTuple):
    """max_bytes: most that the file may hold on the disk.   free_bytes: least that the disk must have left.

    0: no such limit.
    """

    max_bytes: int = 0
    free_bytes: int = 0


UNLIMITED = Limits()


def held_bytes(descriptor: int) -> int:
    """What a file takes of the disk; its posted beginning is a hole and takes nothing."""
    return os.fstat(descriptor).st_blocks * _BLOCK_BYTES


def lack(descriptor: int, limits: Limits) -> str | None:
    """Why no more should be admitted to a journal, for people; None if there is room."""
    if limits.max_bytes and (held := held_bytes(descriptor)) >= limits.max_bytes:
        return f"the journal holds {held} bytes that are not posted, of {limits.max_bytes} allowed"
    if not limits.free_bytes:
        return None
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    return f"the disk has {free} bytes left, not {limits.free_bytes}" if free < limits.free_bytes else None
