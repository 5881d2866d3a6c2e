"""What an event of an SSE stream says, whatever lines it is written in (WHATWG HTML, 9.2.6). Pure."""

from __future__ import annotations

import re

import msgspec

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"
_NAMED_ERROR = re.compile(rb"event:\s*error\s*\Z")


def one_line(event: bytes) -> bytes:
    """The event as one line of data, if it has more lines than that; one without data as it is.

    Names, ids and comments beside the data say nothing that a client of this API reads, but for the name of
    an error: it becomes llama-server's own form, `error: ...`.
    """
    if event.startswith(b"data:") and b"\n" not in event.rstrip():
        return event
    lines = _LINE_END.split(event.removeprefix(_MARK))
    data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    if not data:
        return event
    kind = b"error: " if any(map(_NAMED_ERROR.match, lines)) else b"data: "
    end = b"\n\n" if _LINE_END.match(event[-1:]) else b""
    return kind + b" ".join(data) + end


def is_whole(event: bytes) -> bool:
    """True for an event that only lacks its blank line; False for one that was cut, or for nothing."""
    data = event.partition(b"data:")[2].strip()
    try:
        return data == b"[DONE]" or msgspec.json.decode(data) is not None
    except msgspec.DecodeError:
        return False


def tells_error(event: bytes) -> bool:
    """Whether an event's object has an error of its own: not null, and not that of something within."""
    try:
        chunk = msgspec.json.decode(event.partition(b"data:")[2])
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(chunk, dict) and bool(chunk.get("error"))
