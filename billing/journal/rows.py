"""The rows that a journal's entries become. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from app.core.clock import from_ms
from app.core.ids import IncarnationId
from billing.journal.join import Charge, Entry, Orphan, Refusal, Unreadable

_json = msgspec.json.Encoder().encode


def refusal_row(refusal: Refusal, *, incarnation_id: IncarnationId) -> dict[str, Any]:
    """The row of a refused request. Its texts may be the caller's: NULs are taken out."""
    refused = refusal.refused
    retry_after_ms = None if refused.retry_after_s is None else round(refused.retry_after_s * 1000)
    values = {
        "request_id": refused.request_id,
        "tenant_id": refused.tenant_id,
        "project_id": refused.project_id,
        "key_id": refused.key_id,
        "incarnation_id": incarnation_id,
        "at": from_ms(refused.at_ms),
        "model_name": refused.model_name,
        "endpoint": refused.endpoint,
        "reason": refused.reason,
        "message": refused.message,
        "status": refused.status,
        "limit_value": refused.limit,
        "observed_value": refused.observed,
        "retry_after_ms": retry_after_ms,
        "allowance_id": refused.allowance_id,
        "facts": refused.facts,
    }
    return {name: without_nul(value) for name, value in values.items()}


def parked_row(
    entry: Entry | Orphan, *, incarnation_id: IncarnationId, reason: str, parked_at: datetime
) -> dict[str, Any]:
    """The row of an entry that can't be posted, with its bytes and what it still takes of the leases."""
    request_id: str | None = None
    holds: list[tuple[str, str]] = []
    match entry:
        case Charge():
            request_id = entry.admitted.request_id
            taken = {(used.allowance_id, used.held): used.taken for used in entry.settled.used}
            holds = [
                (held.allowance_id, str(taken.get((held.allowance_id, held.amount), held.amount)))
                for held in entry.admitted.holds
            ]
        case Orphan():
            request_id = entry.settled.request_id
            holds = [(used.allowance_id, str(used.taken)) for used in entry.settled.used]
        case Refusal():
            request_id = entry.refused.request_id
        case Unreadable():
            pass
    return {
        "incarnation_id": incarnation_id,
        "file_offset": entry.start,
        "request_id": without_nul(request_id),
        "reason": without_nul(reason),
        "admitted": entry.admitted_bytes if isinstance(entry, Charge) else None,
        "record": entry.settled_bytes if isinstance(entry, Charge) else entry.payload,
        "holds": holds,
        "parked_at": parked_at,
    }


def without_nul(value: Any) -> Any:
    """`value` with U+0000, which PostgreSQL's text can't hold, shown as U+FFFD, at any depth."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list() | tuple():
            return [without_nul(item) for item in value]
        case dict():
            return {without_nul(key): without_nul(item) for key, item in value.items()}
    return value


def json_bytes(value: Any) -> bytes:
    """JSON that `jsonb` takes: without U+0000."""
    data = _json(value)
    return _json(without_nul(msgspec.to_builtins(value))) if b"\\u0000" in data else data
