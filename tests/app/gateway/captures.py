"""Recorded answers of real engines, as bodies free of HTTP's framing."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "data" / "engine"
VLLM, LLAMA = "vllm-0.32.0-cpu", "xllamacpp-2026.10.11549"


def body(engine: str, name: str) -> bytes:
    """The body of `name`.response.http, de-chunked; or of an `.sse` file, as it is."""
    if name.endswith(".sse"):
        return (_FOLDER / engine / name).read_bytes()
    head, _, rest = (_FOLDER / engine / f"{name}.response.http").read_bytes().partition(b"\r\n\r\n")
    return _dechunked(rest) if b"transfer-encoding: chunked" in head.lower() else rest


def _dechunked(data: bytes) -> bytes:
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        pieces.append(data[:length])
        data = data[length + 2 :]
    return b"".join(pieces)
