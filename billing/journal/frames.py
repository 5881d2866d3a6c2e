"""The bytes of a journal: frames of `u32 length | u32 crc32 | payload`, little-endian. Pure.

A reader meets three kinds of end. *Torn*: the file ends inside a frame; a live writer will go on with
it, a dead one never acknowledged it. *Zeros*: a file system that lost power may show the length of a
write without its bytes; that is a torn tail as well. *Corrupt*: bytes that no writer wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

_HEADER = Struct("<II")
HEADER_BYTES = _HEADER.size
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""No record is near it: a greater length is a corrupt one."""


class Frame(NamedTuple):
    """One record's payload; `start` and `end` are offsets in the file."""

    start: int
    end: int
    payload: bytes


class Tail(Enum):
    """What follows the last complete frame."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


def pack(payload: bytes) -> bytes:
    """The frame of a payload. Raises ValueError if it is empty or too long to be read back."""
    if not 0 < len(payload) <= MAX_PAYLOAD_BYTES:
        raise ValueError(f"a journal record has 1 to {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    return _HEADER.pack(len(payload), crc32(payload)) + payload


def unpack(data: bytes, *, offset: int) -> tuple[list[Frame], Tail]:
    """The complete frames at the head of `data`, which lies at `offset` of the file, and what follows."""
    frames: list[Frame] = []
    position = 0
    while position < len(data):
        frame = _frame_at(data, position, offset=offset)
        if not isinstance(frame, Frame):
            return frames, frame
        frames.append(frame)
        position = frame.end - offset
    return frames, Tail.CLEAN


def is_torn_for_good(tail: bytes) -> bool:
    """True if `tail`, the incomplete end of a dead writer's file, hides no complete frame.

    A broken length looks like a torn end; but a torn end has nothing after it.
    """
    last = len(tail) - HEADER_BYTES
    return not any(_is_frame(tail, position) for position in range(1, last))


def complete_prefix(frames: Sequence[bytes], written: int) -> int:
    """How many of `frames`, written one after the other, are whole within the first `written` bytes."""
    return sum(1 for end in _ends(frames) if end <= written)


def _frame_at(data: bytes, position: int, *, offset: int) -> Frame | Tail:
    if len(data) - position < HEADER_BYTES:
        return Tail.TORN
    length, checksum = _HEADER.unpack_from(data, position)
    body = position + HEADER_BYTES
    if length == 0:
        return Tail.CORRUPT if data[position:].strip(b"\0") else Tail.TORN
    if length > MAX_PAYLOAD_BYTES:
        return Tail.CORRUPT
    if len(data) - body < length:
        return Tail.TORN
    payload = data[body : body + length]
    if crc32(payload) != checksum:
        return Tail.CORRUPT
    return Frame(offset + position, offset + body + length, payload)


def _is_frame(data: bytes, position: int) -> bool:
    length, checksum = _HEADER.unpack_from(data, position)
    body = position + HEADER_BYTES
    return 0 < length <= len(data) - body and bool(crc32(data[body : body + length]) == checksum)


def _ends(frames: Sequence[bytes]) -> Iterator[int]:
    end = 0
    for frame in frames:
        end += len(frame)
        yield end
