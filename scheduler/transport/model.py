"""The values of an exchange: where it goes, what it asks, how long it may take, what it may cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_PRINTABLE = re.compile(r"[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]+)?")


@dataclass(frozen=True, slots=True)
class Target:
    """One engine's address.

    host: a name, an IPv4 or a bare IPv6 literal.   base_path: put before every request's path, without a
    slash at its end.   server_name: the name its certificate must bear, if not `host`.   ca_file: PEM of the
    authorities trusted instead of the system's.
    """

    host: str
    port: int
    tls: bool = False
    server_name: str | None = None
    ca_file: str | None = None
    base_path: str = ""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the parts of an exchange may take, in seconds.

    connect_s: name, connection and TLS.   first_byte_s: from the request sent to the body's first byte (of
    an error status: to its head).   idle_s: between two pieces of the body, and while the engine stops
    reading a large request.   total_s: everything.
    """

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request to an engine. The client itself adds Host, Content-Length and Accept-Encoding: identity."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a client.

    idle_per_target: connections kept for reuse.   connections_per_target: open ones in all.   idle_s: reuse
    no connection that has been idle for longer; vLLM (uvicorn) closes them after 5 s.   head_bytes,
    head_count: names and values of a response's headers; also most bytes in a row without any of a body.
    """

    idle_per_target: int = 256
    connections_per_target: int = 4096
    idle_s: float = 4.0
    head_bytes: int = 64 * 1024
    head_count: int = 128


def parse_target(url: str, *, server_name: str | None = None, ca_file: str | None = None) -> Target:
    """The target of a base URL (`http://10.0.0.7:8000/base`). Raises ValueError for anything unusual.

    Only http and https; no credentials, query or fragment; the host in ASCII.
    """
    if not _PRINTABLE.fullmatch(url):
        raise ValueError("an engine's address consists of printable ASCII characters without spaces")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("an engine's address starts with http:// or https://")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError("an engine's address has no credentials, query or fragment")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or not _HOST.fullmatch(server_name or host) or parts.netloc.endswith(":"):
        raise ValueError("an engine's address names a host and, after a colon, a port")
    tls = parts.scheme == "https"
    port = parts.port if parts.port is not None else (443 if tls else 80)
    if port == 0:
        raise ValueError("port 0 can't be connected to")
    return Target(
        host=host,
        port=port,
        tls=tls,
        server_name=server_name,
        ca_file=ca_file,
        base_path=parts.path.rstrip("/"),
    )
