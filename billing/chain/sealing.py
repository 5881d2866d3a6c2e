"""Gives every posted line its link, a while after its posting: the settler does not wait for it.

One sealer at a time for the whole database: whoever holds the lock. What a sealer's transaction did
not commit is still in the queue, so a sealer may die at any point, or run twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, cast

from sqlalchemy import ARRAY, Text, bindparam, delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.chain.link import Head, Link, digest_of, extend
from billing.chain.rows import Kind, read_lines
from billing.chain.tables import usage_link, usage_unsealed

_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext('steelyard usage chain'))")
_HEADS = text("""
SELECT asked.tenant_id, head.day, head.sequence, head.hash
FROM unnest(:tenant_ids) AS asked (tenant_id) CROSS JOIN LATERAL (
  SELECT day, sequence, hash FROM usage_link WHERE tenant_id = asked.tenant_id
  ORDER BY day DESC, sequence DESC LIMIT 1) AS head
""").bindparams(bindparam("tenant_ids", type_=ARRAY(Text)))
_LINKED = text("""
SELECT asked.line_id FROM unnest(:line_ids) AS asked (line_id) CROSS JOIN LATERAL (
  SELECT FROM usage_link WHERE line_id = asked.line_id LIMIT 1) AS link
""").bindparams(bindparam("line_ids", type_=ARRAY(Text)))
_COLUMNS = tuple(column.name for column in usage_link.columns)
_POSTINGS = 256
"""Most rows of the queue that one transaction takes."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a step did.   links: made.   more: whether the queue may hold more."""

    links: int
    more: bool


class _Line(NamedTuple):
    """A line to be sealed; lines sort into the order of their chains."""

    tenant_id: str
    posted_at: datetime
    id: str
    kind: Kind
    digest: bytes


async def seal(connection: AsyncConnection, *, now: datetime, most: int = 5000) -> Sealed | None:
    """Link what was posted, oldest first, within the caller's transaction; None if another sealer is at it.

    most: lines after which no further posting is taken; a posting is sealed whole.
    """
    if not (await connection.execute(_LOCK)).scalar_one():
        return None
    postings, more = await _postings(connection, most=most)
    lines = await _lines(connection, postings)
    links = _extended(lines, heads=await _heads(connection, {line.tenant_id for line in lines}), now=now)
    await _write(connection, links)
    done = usage_unsealed.c.id.in_([posting.id for posting in postings])
    await connection.execute(delete(usage_unsealed).where(done))
    return Sealed(len(links), more)


async def waiting_since(connection: AsyncConnection) -> datetime | None:
    """When the oldest line that has no link yet was posted; None if all have one."""
    oldest = await connection.execute(select(func.min(usage_unsealed.c.posted_at)))
    return cast("datetime | None", oldest.scalar_one())


async def _postings(connection: AsyncConnection, *, most: int) -> tuple[list[Any], bool]:
    """The oldest postings of the queue, few enough, and whether there are more."""
    queue = usage_unsealed.c
    query = select(queue.id, queue.kind, queue.line_ids).order_by(queue.posted_at, queue.id).limit(_POSTINGS)
    waiting = (await connection.execute(query)).all()
    taken: list[Any] = []
    amount = 0
    for posting in waiting:
        if amount >= most:
            break
        taken.append(posting)
        amount += len(posting.line_ids)
    return taken, len(taken) < len(waiting) or len(waiting) == _POSTINGS


async def _lines(connection: AsyncConnection, postings: Iterable[Any]) -> list[_Line]:
    """What the postings posted, in the order of the chain; what has its link already is left out.

    The queue is also filled by hand, to seal what lost its place: one line too many must not stop all.
    """
    lines: list[_Line] = []
    for kind in Kind:
        line_ids = {line_id for posting in postings if posting.kind == kind for line_id in posting.line_ids}
        line_ids -= await _linked(connection, line_ids)
        async for posted in read_lines(connection, sorted(line_ids), kind=kind):
            lines.append(_Line(posted.tenant_id, posted.at, posted.id, kind, digest_of(posted.line)))
    return sorted(lines)


async def _linked(connection: AsyncConnection, line_ids: set[str]) -> set[str]:
    """Those of the lines that have a link."""
    found = await connection.execute(_LINKED, {"line_ids": list(line_ids)})
    return {row.line_id for row in found}


def _extended(lines: Iterable[_Line], *, heads: dict[str, Head], now: datetime) -> list[tuple[_Line, Link]]:
    links = []
    for line in lines:
        link = extend(
            heads.get(line.tenant_id),
            tenant_id=line.tenant_id,
            posted=line.posted_at.astimezone(UTC).date(),
            today=now.date(),
            digest=line.digest,
        )
        heads[line.tenant_id] = Head(link.day, link.sequence, link.hash)
        links.append((line, link))
    return links


async def _heads(connection: AsyncConnection, tenant_ids: set[str]) -> dict[str, Head]:
    found = await connection.execute(_HEADS, {"tenant_ids": sorted(tenant_ids)})
    return {row.tenant_id: Head(row.day.isoformat(), row.sequence, row.hash) for row in found}


async def _write(connection: AsyncConnection, links: Iterable[tuple[_Line, Link]]) -> None:
    records = [
        (
            line.tenant_id,
            date.fromisoformat(link.day),
            link.sequence,
            line.kind.value,
            line.id,
            link.previous,
            link.hash,
        )
        for line, link in links
    ]
    driver = (await connection.get_raw_connection()).driver_connection
    await driver.copy_records_to_table("usage_link", records=records, columns=_COLUMNS)  # type: ignore[union-attr]
