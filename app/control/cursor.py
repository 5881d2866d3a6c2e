"""Cursors of lists that have no single id to go on from: opaque to the caller."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence

from app.identity.errors import invalid


def write_cursor(position: Sequence[str]) -> str:
    """The text that stands for a position."""
    return base64.urlsafe_b64encode(json.dumps(list(position)).encode()).decode().rstrip("=")


def read_cursor(text: str | None, *, fields: int) -> list[str] | None:
    """The position behind a text that `write_cursor` made. Raises Rejected (400) if it made none such."""
    if text is None:
        return None
    try:
        position = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        position = None
    whole = isinstance(position, list) and all(isinstance(part, str) for part in position)
    if not whole or len(position) != fields or not _is_number(position[0]):
        invalid("The cursor is the `next` of a page of the same question.", param="after")
    return list(position)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
