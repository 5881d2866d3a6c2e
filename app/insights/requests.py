"""The request log: what became of each request, newest first; settled ones and refused ones together."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.journal.tables import refusal, usage_event
from billing.metering.model import Meter

REFUSED = "refused"


@dataclass(frozen=True)
class RequestFilter:
    """Which requests are asked for; None: no restriction.   outcome: of metering, or `refused`."""

    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    outcome: str | None = None
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class RequestRow:
    """One request. A refused one has a reason and no usage.   cost: picos."""

    id: str
    at: datetime
    tenant_id: str
    project_id: str
    key_id: str
    model: str | None
    endpoint: str
    outcome: str
    status: int
    reason: str | None = None
    streamed: bool | None = None
    backend_id: str | None = None
    usage_source: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    cost: int | None = None
    currency: str | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None


async def list_requests(
    connection: AsyncConnection, only: RequestFilter, *, before: str | None, limit: int
) -> list[RequestRow]:
    """At most `limit` requests, newest first, older than a given one."""
    rows: list[RequestRow] = []
    if only.outcome != REFUSED:
        query = _restricted(usage_event, only, moment="admitted_at", before=before)
        if only.outcome is not None:
            query = query.where(usage_event.c.outcome == only.outcome)
        rows += [_settled(row._mapping) for row in await connection.execute(query.limit(limit))]
    if only.outcome in (None, REFUSED):
        query = _restricted(refusal, only, moment="at", before=before)
        rows += [_refused(row._mapping) for row in await connection.execute(query.limit(limit))]
    return sorted(rows, key=lambda row: row.id, reverse=True)[:limit]


def _restricted(
    table: Table, only: RequestFilter, *, moment: str, before: str | None
) -> Select[tuple[Any, ...]]:
    query = select(table).order_by(table.c.request_id.desc())
    if before is not None:
        query = query.where(table.c.request_id < before)
    named = {
        "tenant_id": only.tenant_id,
        "project_id": only.project_id,
        "key_id": only.key_id,
        "model_name": only.model,
    }
    for name, wanted in named.items():
        if wanted is not None:
            query = query.where(table.c[name] == wanted)
    if only.start is not None:
        query = query.where(table.c[moment] >= only.start)
    if only.end is not None:
        query = query.where(table.c[moment] < only.end)
    return query


def usage_of(row: Any, *, prefix: str = "") -> dict[str, int]:
    """Tokens by class from a row of usage events."""
    return {meter.value: int(row[prefix + meter.value]) for meter in Meter}


def _settled(row: Any) -> RequestRow:
    return RequestRow(
        id=row["request_id"],
        at=row["admitted_at"],
        tenant_id=row["tenant_id"],
        project_id=row["project_id"],
        key_id=row["key_id"],
        model=row["model_name"],
        endpoint=row["endpoint"],
        outcome=row["outcome"],
        status=row["status"],
        reason=row["error_code"],
        streamed=row["streamed"],
        backend_id=row["backend_id"],
        usage_source=row["usage_source"],
        usage=usage_of(row),
        cost=row["cost"],
        currency=row["currency"],
        ttft_ms=row["ttft_ms"],
        duration_ms=row["duration_ms"],
    )


def _refused(row: Any) -> RequestRow:
    return RequestRow(
        id=row["request_id"],
        at=row["at"],
        tenant_id=row["tenant_id"],
        project_id=row["project_id"],
        key_id=row["key_id"],
        model=row["model_name"],
        endpoint=row["endpoint"],
        outcome=REFUSED,
        status=row["status"],
        reason=row["reason"],
    )
