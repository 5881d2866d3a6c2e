"""Second settlements of one request that say something else: kept and shown, never charged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, Text, any_, bindparam, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import IncarnationId, RequestId
from billing.journal.join import Charge, Orphan, digest
from billing.journal.tables import usage_conflict, usage_event


async def hashes(connection: AsyncConnection, request_ids: Iterable[RequestId]) -> dict[RequestId, bytes]:
    """The payload hashes of the requests that have an event.

    One array, however many they are: a statement has at most 32,767 parameters.
    """
    event = usage_event.c
    wanted = any_(bindparam("wanted", list(request_ids), ARRAY(Text)))
    query = select(event.request_id, event.payload_hash).where(event.request_id == wanted)
    return {
        RequestId(request_id): payload_hash for request_id, payload_hash in await connection.execute(query)
    }


async def tell_unless_same(
    connection: AsyncConnection,
    orphan: Orphan,
    *,
    incarnation_id: IncarnationId,
    posted: bytes,
    now: datetime,
) -> int:
    """Record a settlement whose admission is gone, unless the posted one is the same; 1 if it was new."""
    if posted[32:] == digest(orphan.payload):
        return 0
    row = {
        "request_id": orphan.settled.request_id,
        "payload_hash": posted[:32] + digest(orphan.payload),
        "incarnation_id": incarnation_id,
        "posted_hash": posted,
        "admitted": None,
        "settled": orphan.payload,
        "seen_at": now,
    }
    return await _insert(connection, [row])


async def tell_conflicts(
    connection: AsyncConnection, old: Sequence[Charge], *, incarnation_id: IncarnationId, now: datetime
) -> int:
    """Record the charges that say something else than their request's event; returns how many were new."""
    if not old:
        return 0
    known = await hashes(connection, {charge.admitted.request_id for charge in old})
    rows = [
        {
            "request_id": charge.admitted.request_id,
            "payload_hash": charge.payload_hash,
            "incarnation_id": incarnation_id,
            "posted_hash": known[charge.admitted.request_id],
            "admitted": charge.admitted_bytes,
            "settled": charge.settled_bytes,
            "seen_at": now,
        }
        for charge in old
        if known[charge.admitted.request_id] != charge.payload_hash
    ]
    return await _insert(connection, rows)


class Disputed(NamedTuple):
    """A settlement that says something else than its request's event.   id: of the request."""

    id: str
    incarnation_id: str
    payload_hash: bytes
    posted_hash: bytes
    seen_at: datetime


async def list_conflicts(connection: AsyncConnection, *, limit: int) -> list[Disputed]:
    """Conflicts, the newest first."""
    told = usage_conflict.c
    columns = (told.request_id, told.incarnation_id, told.payload_hash, told.posted_hash, told.seen_at)
    query = select(*columns).order_by(told.seen_at.desc(), told.request_id, told.payload_hash).limit(limit)
    return [Disputed(*row) for row in await connection.execute(query)]


async def _insert(connection: AsyncConnection, rows: list[dict[str, Any]]) -> int:
    if not rows:
        return 0
    statement = insert(usage_conflict).on_conflict_do_nothing().returning(usage_conflict.c.request_id)
    return len((await connection.execute(statement, rows)).all())
