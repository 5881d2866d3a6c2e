"""Finds ids that occur more than once among any number of them, in bounded memory: an external sort.

A chain fixes what was sealed; that one request was sealed twice, it can't tell.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from tempfile import TemporaryFile
from types import TracebackType
from typing import BinaryIO

_CHUNK = 1 << 18
"""Ids that are sorted at once in memory."""
_READ = 4096


def key_of(line_id: str) -> int:
    """64 bits that stand for an id; equal keys are looked at once more."""
    return int.from_bytes(blake2b(line_id.encode(), digest_size=8).digest(), "big")


class Doubles:
    """Takes ids; `found` tells the keys of those that came twice. A context, for its temporary files."""

    def __init__(self, *, chunk: int = _CHUNK) -> None:
        self._chunk = chunk
        self._keys = array("Q")
        self._sorted: list[BinaryIO] = []
        self._files = ExitStack()

    def __enter__(self) -> Doubles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, line_id: str) -> None:
        self._keys.append(key_of(line_id))
        if len(self._keys) >= self._chunk:
            self._spill()

    def found(self) -> set[int]:
        """Keys that came more than once."""
        runs = [_read(file) for file in self._sorted]
        found, last = set(), -1
        for key in heapq.merge(sorted(self._keys), *runs):
            if key == last:
                found.add(key)
            last = key
        return found

    def _spill(self) -> None:
        file = self._files.enter_context(TemporaryFile())  # noqa: SIM115 - the stack closes it
        array("Q", sorted(self._keys)).tofile(file)
        self._sorted.append(file)
        self._keys = array("Q")


def _read(file: BinaryIO) -> Iterator[int]:
    file.seek(0)
    while raw := file.read(_READ * 8):
        yield from array("Q", raw)
