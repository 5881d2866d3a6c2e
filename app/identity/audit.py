"""The audit log: who did what to what, before and after; append-only and hash-chained.

A face collects entries in a `Trail` while it acts and appends them last, in the transaction of the
act. So the lock that orders the chain is the last one taken and never part of a deadlock.
hash = SHA-256(previous hash || canonical JSON of the row). A row that was changed, dropped or put
in between breaks every hash after it; `verify` names the first.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import RowMapping, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import TenantId
from app.core.log import redact
from app.identity.tables import audit_log

_CHAIN_LOCK = 0x57EE_A0D1
_GENESIS = bytes(32)
_VERIFY_BATCH = 1000


@dataclass(frozen=True)
class AuditEntry:
    """One act.   before, after: the object's public fields as JSON values; never a secret."""

    action: str
    object_type: str
    object_id: str
    tenant_id: TenantId | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass
class Trail:
    """What an actor did within one transaction, in order."""

    actor: str
    from_address: str | None = None
    entries: list[AuditEntry] = field(default_factory=list)

    def note(self, action: str, object_id: str, **facts: Any) -> None:
        """Add an entry. `action` is `object_type.verb`, e.g. `api_key.rotate`."""
        self.entries.append(AuditEntry(action, action.split(".", 1)[0], object_id, **facts))


async def append(connection: AsyncConnection, trail: Trail, *, now: datetime) -> None:
    """Chain the trail's entries to the log. Call last in the transaction; writers wait for each other."""
    if not trail.entries:
        return
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _CHAIN_LOCK})
    newest = select(audit_log.c.sequence, audit_log.c.hash).order_by(audit_log.c.sequence.desc()).limit(1)
    last = (await connection.execute(newest)).first()
    sequence, previous = (last.sequence, bytes(last.hash)) if last else (0, _GENESIS)
    rows = []
    for entry in trail.entries:
        sequence += 1
        row = _row(entry, trail=trail, sequence=sequence, now=now)
        row |= {"previous_hash": previous, "hash": _hash(row, previous)}
        previous = row["hash"]
        rows.append(row)
    await connection.execute(insert(audit_log), rows)


async def verify(connection: AsyncConnection) -> int | None:
    """The sequence of the first entry that doesn't follow from its predecessor; None if all do."""
    previous, expected = _GENESIS, 1
    while rows := (await connection.execute(_batch_from(expected))).mappings().all():
        for row in rows:
            intact = row["sequence"] == expected and bytes(row["previous_hash"]) == previous
            if not intact or bytes(row["hash"]) != _hash(dict(row), previous):
                return expected
            previous, expected = bytes(row["hash"]), expected + 1
    return None


async def list_entries(
    connection: AsyncConnection,
    *,
    before_sequence: int | None,
    limit: int,
    object_id: str | None = None,
) -> list[RowMapping]:
    """Entries, newest first, below a sequence."""
    query = select(audit_log).order_by(audit_log.c.sequence.desc()).limit(limit)
    if before_sequence is not None:
        query = query.where(audit_log.c.sequence < before_sequence)
    if object_id is not None:
        query = query.where(audit_log.c.object_id == object_id)
    return list((await connection.execute(query)).mappings().all())


def _batch_from(sequence: int) -> Any:
    query = select(audit_log).where(audit_log.c.sequence >= sequence)
    return query.order_by(audit_log.c.sequence).limit(_VERIFY_BATCH)


def _row(entry: AuditEntry, *, trail: Trail, sequence: int, now: datetime) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "at": now,
        "actor": trail.actor,
        "action": entry.action,
        "object_type": entry.object_type,
        "object_id": entry.object_id,
        "tenant_id": entry.tenant_id,
        "before": _plain(entry.before),
        "after": _plain(entry.after),
        "from_address": trail.from_address,
    }


def _plain(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Facts as what JSON gives back, with anything that looks like a secret blotted out."""
    if facts is None:
        return None
    plain: dict[str, Any] = json.loads(redact(json.dumps(facts, default=str)))
    return plain


def _hash(row: dict[str, Any], previous: bytes) -> bytes:
    facts = {name: value for name, value in row.items() if name not in ("hash", "previous_hash")}
    facts["at"] = facts["at"].astimezone(UTC).isoformat(timespec="microseconds")
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(previous + canonical.encode()).digest()
