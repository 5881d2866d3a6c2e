"""How a line is bound to all lines before it. Pure; the same code seals and verifies.

    line      = SHA-256 of the line's canonical bytes
    hash      = SHA-256(previous ‖ canonical {"day", "line", "sequence"})
    previous  = the hash of the line before, or the day's genesis for sequence 1
    genesis   = SHA-256(hash of the last line of the tenant's day before ‖ canonical {"day", "tenant_id", …})

So a hash fixes every line of the tenant up to it: content, order, number, and days. A line that is
withheld is still proven by its digest alone, which tells nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

BEGINNING = bytes(32)
"""What stands before a tenant's first day."""
_WORD = "steelyard usage chain 1"
canonical = msgspec.json.Encoder(order="sorted").encode
"""A value's canonical bytes: JSON in UTF-8, keys sorted, no spaces, integers in decimal digits (RFC 8785)."""


class Link(NamedTuple):
    """A line's place.   sequence: from 1 within the day (UTC, `YYYY-MM-DD`).   previous, hash: 32 bytes."""

    day: str
    sequence: int
    previous: bytes
    hash: bytes


class Head(NamedTuple):
    """How far a tenant's chain has come."""

    day: str
    sequence: int
    hash: bytes


def digest_of(line: Mapping[str, Any]) -> bytes:
    """The digest of a line without its `chain`."""
    return sha256(canonical(line)).digest()


def hash_of(previous: bytes, *, day: str, sequence: int, digest: bytes) -> bytes:
    """The hash that binds a line to its place."""
    place = {"day": day, "line": digest.hex(), "sequence": sequence}
    return sha256(previous + canonical(place)).digest()


def genesis(tenant_id: str, *, day: str, before: bytes) -> bytes:
    """What the first line of a day goes back to.   before: the tenant's last hash, or `BEGINNING`."""
    return sha256(before + canonical({"chain": _WORD, "day": day, "tenant_id": tenant_id})).digest()


def extend(head: Head | None, *, tenant_id: str, posted: date, today: date, digest: bytes) -> Link:
    """The link of a tenant's next line. Its day is that of its posting, but never before the chain's.

    A line that is sealed after a later day has begun joins that day: a day that has ended stays as it is.
    A settler's clock that runs ahead of the sealer's can't pull the chain into the future.
    """
    day = min(posted, today).isoformat()
    if head is None or day > head.day:
        before = BEGINNING if head is None else head.hash
        previous, sequence = genesis(tenant_id, day=day, before=before), 1
    else:
        day, previous, sequence = head.day, head.hash, head.sequence + 1
    return Link(day, sequence, previous, hash_of(previous, day=day, sequence=sequence, digest=digest))
