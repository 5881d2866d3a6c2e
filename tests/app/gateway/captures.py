"""Recorded answers of real engines, as bodies free of HTTP's framing."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "data" / "engine"
VLLM, LLAMA = "vllm-0.32.0-cpu", "xllamacpp-2026.10.11549"
DECODE = "vllm-0.32.0-cpu-pd-nixl"
"""Answers of the decode engine of a prefill/decode pair, noted without HTTP's framing."""


def body(engine: str, name: str) -> bytes:
    """The body of `name`.response.http, de-chunked; of a `.response.txt` or `.sse` file, as it is."""
    return _body(_FOLDER / engine / name if name.endswith(".sse") else _path(engine, name))


def streams() -> dict[str, bytes]:
    """All recorded streams, by folder and name, however they end."""
    paths = sorted(path for path in _FOLDER.glob("*/*") if path.is_file())
    found = {f"{path.parent.name}/{path.name.partition('.')[0]}": path for path in paths}
    bodies = {name: _body(path) for name, path in found.items()}
    return {name: data for name, data in bodies.items() if data.startswith(b"data: ")}


def _path(engine: str, name: str) -> Path:
    known = (_FOLDER / engine / f"{name}.response.{form}" for form in ("http", "txt"))
    return next(path for path in known if path.exists())


def _body(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".sse":
        return data
    if path.suffix == ".txt":
        return data.partition(b"\n\n")[2]
    head, _, rest = data.partition(b"\r\n\r\n")
    framed = b"transfer-encoding: chunked" in head.lower() and not rest.startswith(b"data: ")
    return _dechunked(rest) if framed else rest


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
