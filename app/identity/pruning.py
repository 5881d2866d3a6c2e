"""Rows that have had their time: answers kept for repeated writes, and sessions that ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.identity.tables import idempotency_key, session

KEEP_ANSWERS = timedelta(days=30)
"""After so long a write under the same Idempotency-Key is a new one."""
BATCH = 5000


class Pruned(NamedTuple):
    """How many rows of each kind are gone."""

    idempotency_keys: int
    sessions: int


async def prune(connection: AsyncConnection, *, now: datetime) -> Pruned:
    """Delete at most `BATCH` rows of each kind; call again until none is left.

    Rows that somebody holds are left for another time, so that nobody waits and nothing deadlocks.
    """
    old_answers = idempotency_key.c.created_at < now - KEEP_ANSWERS
    return Pruned(
        await _delete(connection, idempotency_key, which=old_answers),
        await _delete(connection, session, which=session.c.expires_at <= now),
    )


async def _delete(connection: AsyncConnection, table: Table, *, which: ColumnElement[bool]) -> int:
    key: tuple[Any, ...] = tuple(table.primary_key.columns)
    batch = select(*key).where(which).limit(BATCH).with_for_update(skip_locked=True)
    gone = await connection.execute(delete(table).where(tuple_(*key).in_(batch)))
    return int(gone.rowcount)
