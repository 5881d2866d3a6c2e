"""What a gateway notes of its admissions beside its work: each claim, end and refusal, to the nanosecond.

The journal tells when a request came, not when its needs were taken after a wait; a bucket's overshoot hangs
on that. Notes go into a mapped file, so that writing one is no call of the system and `kill -9` loses none.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

_SIZE = 96 * 1024**2


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """A claim by this process, its `number`-th, and when it had it."""

    number: int
    at_ns: int
    needs: tuple[tuple[str, int], ...]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The end of a claim: about to be freed but for what was used.   withdrawn: it never was admitted."""

    number: int
    at_ns: int
    used: dict[str, int]
    withdrawn: bool = False


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """The request of a claim.   cpu_ns: of its admission, if that did not wait.   waited_ns: if it did."""

    number: int
    request_id: str
    tenant_id: str
    cpu_ns: int | None
    waited_ns: int | None


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A request that was not admitted: from when to when it asked, and what it lacked.

    status: 503 if the authority could not be reached.
    """

    tenant_id: str
    began_ns: int
    ended_ns: int
    status: int
    reason: str
    allowance_id: str | None
    needed: int | None
    available: int | None


class Message(msgspec.Struct, frozen=True, array_like=True, tag="message"):
    """One exchange with the authority.   out: what this process had of each allowance after it."""

    sent_ns: int
    answered_ns: int
    out: dict[str, int]


Note = Taken | Ended | Admitted | Refused | Message


class Notes:
    """A file of notes to write."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_SIZE)  # sparse: it takes what is written
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._at = 0
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, note: Note) -> None:
        """Write it down. Its length comes last, so that half a note is none."""
        row = self._encode(note)
        at, size = self._at, len(row)
        self._map[at + 4 : at + 4 + size] = row
        self._map[at : at + 4] = size.to_bytes(4, "big")
        self._at += 4 + size


def read(path: Path) -> Iterator[Note]:
    """All notes of a file, also while it is written, in their order."""
    decode = msgspec.msgpack.Decoder(Note, strict=False).decode
    with path.open("rb") as file:
        while size := int.from_bytes(file.read(4), "big"):
            yield decode(file.read(size))
