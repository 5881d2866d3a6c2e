"""What the gateways' journals ever said, read on as they grow: a settler frees what it has posted of them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from billing.journal.frames import unpack
from billing.journal.join import digest
from billing.journal.model import Admitted, Progress, Reading, Settled, decode

_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass
class Journals:
    """Every record of the folder's journals, the living and the archived ones.

    admitted: how often each request was.   admitted_hash: of its record.   settled: each settlement with
    its record's hash.   furthest: the last progress of a request.
    """

    folder: Path
    admitted: Counter[str] = field(default_factory=Counter)
    admitted_hash: dict[str, bytes] = field(default_factory=dict)
    settled: dict[str, list[tuple[Settled, bytes]]] = field(default_factory=dict)
    furthest: dict[str, Reading] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)

    def read_on(self) -> None:
        """Take in what was written since the last time."""
        for path in (*self.folder.glob("*.journal"), *self.folder.glob("closed/*.journal")):
            data = _bytes_of(path, offset=self._read.get(path.name, 0))
            frames, _ = unpack(data, offset=self._read.get(path.name, 0))
            for frame in frames:
                self._take(frame.payload)
                self._read[path.name] = frame.end

    def _take(self, payload: bytes) -> None:
        match decode(payload):
            case Admitted(request_id=request_id):
                self.admitted[request_id] += 1
                self.admitted_hash[request_id] = digest(payload)
            case Settled() as settled:
                self.settled.setdefault(settled.request_id, []).append((settled, digest(payload)))
            case Progress(readings=readings):
                self.furthest |= {reading.request_id: reading for reading in readings if reading.usage}


def _bytes_of(path: Path, *, offset: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # just archived: its other name is read too, or the next time
        return b""
    try:
        return os.pread(descriptor, _CHUNK_BYTES, offset)
    finally:
        os.close(descriptor)
