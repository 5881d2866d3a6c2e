"""Reads the metadata of a GGUF file (versions 2 and 3), without its tensors.

The reader of the package `gguf` makes an array of each string, which takes a quarter of a minute for a
vocabulary. Source: the GGUF specification of ggml, `docs/gguf.md`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {kind: Struct(f"<{code}") for kind, code in enumerate("BbHhIif?")} | {
    kind: Struct(f"<{code}") for kind, code in zip((10, 11, 12), "Qqd", strict=True)
}
_COUNT, _KIND, _HEADER = Struct("<Q"), Struct("<I"), Struct("<4sIQQ")
_MOST_BYTES = 1 << 26
"""Of one string: a file that claims more is damaged."""


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a file. Raises ValueError if it is no whole GGUF file."""
    try:
        with path.open("rb") as file:
            magic, version, _, pairs = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _MAGIC or version not in (2, 3):
                raise ValueError("it is no GGUF file of version 2 or 3")
            return {_string(file): _value(file, _unpack(file, _KIND)) for _ in range(pairs)}
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from error


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])
    inner, amount = _unpack(file, _KIND), _unpack(file, _COUNT)
    if inner == _ARRAY:
        raise ValueError("it has an array of arrays")
    return [_value(file, inner) for _ in range(amount)]


def _string(file: BinaryIO) -> str:
    length = _unpack(file, _COUNT)
    if length > _MOST_BYTES:
        raise ValueError(f"it has a string of {length} bytes")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("it ends within a string")
    return text.decode()


def _unpack(file: BinaryIO, form: Struct) -> Any:
    return form.unpack(file.read(form.size))[0]
