"""Finds and cuts members of a JSON object in its bytes, without decoding it. Pure.

It relies on one fact: inside a JSON string a quote is escaped, so `"usage":` can't stand in a text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_COLON = re.compile(rb"\s*:\s*")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_SPACE = b" \t\r\n"
_OPEN, _CLOSE = b"{", b"}"


class Member(NamedTuple):
    """A member's bytes: from its key's quote at `start`, its value from `value` to `end`."""

    start: int
    value: int
    end: int


def find_member(data: bytes, key: bytes) -> Member | None:
    """The last member with this quoted key (`b'"usage"'`) whose value is an object or null."""
    at = data.rfind(key)
    while at >= 0:
        colon = _COLON.match(data, at + len(key))
        if colon is not None and (at == 0 or data[at - 1 : at] != b"\\"):
            value = colon.end()
            if data.startswith(b"null", value):
                return Member(at, value, value + 4)
            end = object_end(data, value) if data[value : value + 1] == _OPEN else 0
            if end:
                return Member(at, value, end)
        at = data.rfind(key, 0, at)
    return None


def object_end(data: bytes, start: int) -> int:
    """The index after the object that starts at `start`, or 0 if it does not end."""
    flat = data.find(_CLOSE, start)
    is_flat = flat >= 0 and data.find(_OPEN, start + 1, flat) < 0 and data.find(b"\\", start, flat) < 0
    if is_flat and data.count(b'"', start, flat) % 2 == 0:
        return flat + 1
    depth = 0
    for token in _TOKEN.finditer(data, start):
        if token[0] == _OPEN:
            depth += 1
        elif token[0] == _CLOSE:
            depth -= 1
            if depth == 0:
                return token.end()
    return 0


def without(data: bytes, member: Member) -> bytes:
    """The bytes without this member and the comma that parted it from its neighbour."""
    start, end = member.start, member.end
    if data[start - 1 : start] == b",":
        return data[: start - 1] + data[end:]
    before = data[:start].rstrip(_SPACE)
    if before.endswith(b","):
        return before[:-1] + data[end:]
    after = data[end:].lstrip(_SPACE)
    return data[:start] + (after[1:].lstrip(_SPACE) if after.startswith(b",") else data[end:])
