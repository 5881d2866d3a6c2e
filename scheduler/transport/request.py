"""The bytes of a request's head, and what may not stand in it (pure)."""

from __future__ import annotations

import re
from functools import lru_cache

from scheduler.transport.model import EngineRequest, Target

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]{1,16}")
_PATH = re.compile(r"/[!-~]*")
_OURS = frozenset(
    (
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_BODILESS = frozenset(("GET", "HEAD"))


def encode_head(request: EngineRequest, target: Target) -> bytes:
    """The request line and headers, to the empty line.

    Raises ValueError for a method, path or header that could change the meaning of the message: control
    characters, names that are no tokens, and headers that are the client's to set (framing, connection).
    """
    parts = [_start(request.method, request.path, target)]
    for name, value in request.headers:
        parts.append(_field(name))
        parts.append(value)
    ends = len(request.headers) + 4
    if request.body or request.method not in _BODILESS:
        parts.append(b"\r\ncontent-length: %d\r\n\r\n" % len(request.body))
        ends += 1
    else:
        parts.append(b"\r\n\r\n")
    head = b"".join(parts)
    # Each line that we wrote has one CR and one LF; one more of either came with a value.
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        raise ValueError("a header's value has a CR, LF or NUL in it")
    return head


@lru_cache(maxsize=1024)
def _start(method: str, path: str, target: Target) -> bytes:
    if not _METHOD.fullmatch(method):
        raise ValueError("a method consists of capital letters")
    if not _PATH.fullmatch(path):
        raise ValueError("a path starts with a slash and consists of printable ASCII characters")
    host = f"[{target.host.partition('%')[0]}]" if ":" in target.host else target.host
    authority = host if target.port == (443 if target.tls else 80) else f"{host}:{target.port}"
    line = f"{method} {target.base_path}{path} HTTP/1.1\r\nhost: {authority}\r\naccept-encoding: identity"
    return line.encode("ascii")


@lru_cache(maxsize=1024)
def _field(name: bytes) -> bytes:
    """What stands between the line before and a header's value."""
    if not _TOKEN.fullmatch(name):
        raise ValueError("a header's name is no token")
    if name.lower() in _OURS:
        raise ValueError(f"the client sets the header {name.decode()} itself")
    return b"\r\n%s: " % name
