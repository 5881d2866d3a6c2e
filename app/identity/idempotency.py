"""The answer once given to a write is given again: same key, same body, one effect.

The lock on the key is held to the end of the transaction, and the answer is stored in it: of two
calls at once the second waits and then finds the first one's answer. A write that failed stored
nothing, so it may be tried again with the same key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Conflict
from app.identity.tables import idempotency_key

MAX_LENGTH = 255


@dataclass(frozen=True)
class Answer:
    """What was answered: HTTP status and JSON body."""

    status: int
    body: Any


@dataclass(frozen=True)
class Mark:
    """What makes a write this one: who sent it, under which key, and the SHA-256 of all it says."""

    actor: str
    key: str
    request_hash: bytes


async def recall(connection: AsyncConnection, mark: Mark) -> Answer | None:
    """The answer given to this key before, or None if the caller is now the one to act.

    Raises Conflict if the key came with another request.
    """
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 7))")
    await connection.execute(lock, {"name": f"{mark.actor}\n{mark.key}"})
    stored = (idempotency_key.c.actor == mark.actor) & (idempotency_key.c.key == mark.key)
    row = (await connection.execute(select(idempotency_key).where(stored))).one_or_none()
    if row is None:
        return None
    if bytes(row.request_hash) != mark.request_hash:
        raise Conflict("This Idempotency-Key was used for another request.", param="Idempotency-Key")
    return Answer(row.status, row.response)


async def remember(connection: AsyncConnection, mark: Mark, *, answer: Answer) -> None:
    """Store the answer. Call in the transaction of the write, after `recall`."""
    values = {
        "actor": mark.actor,
        "key": mark.key,
        "request_hash": mark.request_hash,
        "status": answer.status,
        "response": answer.body,
    }
    await connection.execute(insert(idempotency_key).values(values))
