"""Gives the posted beginning of a journal back to the disk: its length and all offsets stay as they are.

A journal lives as long as its process, so without it the file of a busy gateway would grow for months.
"""

from __future__ import annotations

import ctypes
import os
from errno import EOPNOTSUPP
from pathlib import Path

BLOCK_BYTES = 4096
STEP_BYTES = 1024 * 1024
"""No call for less."""
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h
_OFFSET = ctypes.c_int64
_FAR = 1 << 40


def punch(path: Path, *, end: int) -> None:
    """Free the whole blocks of a file before `end`; they read as zeros from then on. The first block stays:
    it says whose journal it is.

    Through a descriptor of its own: the reader's can't write, and closing one does not end a `flock`.
    Raises OSError where the file system, the system or the file's mode does not allow it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _punch(descriptor, start=BLOCK_BYTES, length=end - end % BLOCK_BYTES - BLOCK_BYTES)
    finally:
        os.close(descriptor)


def can_punch(descriptor: int) -> bool:
    """Whether the file's disk takes holes: tries one far behind its end, which changes nothing."""
    try:
        _punch(descriptor, start=_FAR, length=BLOCK_BYTES)
    except OSError:
        return False
    return True


def _punch(descriptor: int, *, start: int, length: int) -> None:
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        raise OSError(EOPNOTSUPP, "this system can't punch holes")
    if fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, _OFFSET(start), _OFFSET(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
