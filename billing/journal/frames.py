"""The bytes of a journal: frames of `u32 length | u32 crc32 | payload`, little-endian. Pure.

A reader meets three kinds of end. *Torn*: the file ends inside a frame; a live writer will go on with
it, a dead one never acknowledged it. *Zeros*: a file system that lost power may show the length of a
write without its bytes, or with the first of them; that is a torn tail as well. *Corrupt*: bytes that no
writer wrote.
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
_PAGE_BYTES = 4096
"""Nothing smaller of a file is on the disk or not: the least page of the file systems in use."""
_KIND = b"\xa4type"
_MAP_HEADS = (b"\x80", b"\xde\0\0")


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
    position, size, read_header = 0, len(data), _HEADER.unpack_from
    while position + HEADER_BYTES <= size:
        length, checksum = read_header(data, position)
        body = position + HEADER_BYTES
        end = body + length
        if end > size or not 0 < length <= MAX_PAYLOAD_BYTES:
            break
        payload = data[body:end]
        if crc32(payload) != checksum:
            break
        frames.append(Frame(offset + position, offset + end, payload))
        position = end
    return frames, _tail_at(data, position, offset=offset)


def find_next(data: bytes, start: int) -> int | None:
    """Where the first complete frame at or after `start` begins, or None: how a reader goes on after bytes
    that no writer wrote.

    A record is a map whose first key is its kind, so its frame is looked for by the bytes of that key: a
    checksum alone would have to be tried at each byte.
    """
    at = data.find(_KIND, start)
    while at >= 0:
        for head in _MAP_HEADS:
            position = at - len(head) - HEADER_BYTES
            if position >= start and _is_map(data[at - len(head) : at], head) and _is_frame(data, position):
                return position
        at = data.find(_KIND, at + 1)
    return None


def complete_prefix(frames: Sequence[bytes], written: int) -> int:
    """How many of `frames`, written one after the other, are whole within the first `written` bytes."""
    return sum(1 for end in _ends(frames) if end <= written)


def _tail_at(data: bytes, position: int, *, offset: int) -> Tail:
    """What begins where the last complete frame ended.   offset: of `data` in the file."""
    left = len(data) - position
    if left < HEADER_BYTES:
        return Tail.TORN if left else Tail.CLEAN
    length, _ = _HEADER.unpack_from(data, position)
    if length == 0:
        return Tail.CORRUPT if data[position:].strip(b"\0") else Tail.TORN
    end = position + HEADER_BYTES + length
    if end > len(data) and length <= MAX_PAYLOAD_BYTES:
        return Tail.TORN
    fades = length <= MAX_PAYLOAD_BYTES and _fades(data, end, offset=offset)
    return Tail.TORN if fades else Tail.CORRUPT


def _fades(data: bytes, end: int, *, offset: int) -> bool:
    """True if a page that begins before `end`, a broken frame's, is zeros, and so is all of `data` behind it:
    not all of the frame's pages were on the disk when the power went. A record may well end in a zero, so
    zeros that begin within the last page are no sign of it.
    """
    zeros = offset + len(data.rstrip(b"\0"))
    page = -(-zeros // _PAGE_BYTES) * _PAGE_BYTES
    return page < offset + min(end, len(data))


def _is_map(head: bytes, form: bytes) -> bool:
    """True if these bytes begin a map: of up to 15 entries in one byte, of more in three (MessagePack)."""
    return head[0] & 0xF0 == 0x80 if len(form) == 1 else head[0] == form[0]


def _is_frame(data: bytes, position: int) -> bool:
    length, checksum = _HEADER.unpack_from(data, position)
    body = position + HEADER_BYTES
    if not 0 < length <= min(len(data) - body, MAX_PAYLOAD_BYTES):
        return False
    return bool(crc32(data[body : body + length]) == checksum)


def _ends(frames: Sequence[bytes]) -> Iterator[int]:
    end = 0
    for frame in frames:
        end += len(frame)
        yield end
