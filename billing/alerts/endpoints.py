"""Endpoints: where a tenant's alerts go. A webhook's secret is told once and read by the worker alone.

Whoever changes an endpoint or what becomes of its deliveries locks the endpoint first, several in the order
of their ids.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import AlertEndpointId, TenantId
from billing.alerts.message import SECRET_BYTES, shown_secret
from billing.alerts.model import Endpoint
from billing.alerts.tables import alert_delivery, alert_endpoint, alert_secret

MOST_ENDPOINTS = 20
"""Of one tenant, removed ones not counted."""


async def create_endpoint(
    connection: AsyncConnection,
    tenant_id: TenantId,
    *,
    kind: str,
    name: str,
    address: str,
    created_by: str,
    now: datetime,
) -> tuple[Endpoint, str | None]:
    """A new endpoint, and the secret of a webhook: the only time that it is known.

    Raises Conflict if the tenant has as many as it may have.
    """
    await connection.execute(
        select(func.pg_advisory_xact_lock(func.hashtextextended(f"alert_endpoint:{tenant_id}", 7)))
    )
    there = alert_endpoint.c.status != "removed"
    count = select(func.count()).where(alert_endpoint.c.tenant_id == tenant_id, there)
    if (await connection.execute(count)).scalar_one() >= MOST_ENDPOINTS:
        raise Conflict(f"A tenant has at most {MOST_ENDPOINTS} alert endpoints.", tenant_id=tenant_id)
    values = {
        "id": ids.alert_endpoint_id(),
        "tenant_id": tenant_id,
        "kind": kind,
        "name": name,
        "address": address,
        "created_by": created_by,
        "created_at": now,
    }
    row = (await connection.execute(insert(alert_endpoint).values(values).returning(alert_endpoint))).one()
    created = Endpoint(**row._mapping)
    if kind != "webhook":
        return created, None
    secret = secrets.token_bytes(SECRET_BYTES)
    await connection.execute(insert(alert_secret).values(endpoint_id=created.id, secret=secret))
    return created, shown_secret(secret)


async def get_endpoint(connection: AsyncConnection, endpoint_id: str, *, within: TenantId | None) -> Endpoint:
    """The endpoint. Raises Rejected (404) if there is none within reach; a removed one is none."""
    query = select(alert_endpoint).where(alert_endpoint.c.id == endpoint_id)
    row = (await connection.execute(query.where(alert_endpoint.c.status != "removed"))).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        _unknown(endpoint_id)
    return Endpoint(**row._mapping)


async def list_endpoints(
    connection: AsyncConnection, *, tenant_id: TenantId | None, after: str | None, limit: int
) -> list[Endpoint]:
    """Endpoints in the order of their making, after a given one.   tenant_id: None is every tenant."""
    query = select(alert_endpoint).where(alert_endpoint.c.status != "removed")
    query = query.where(alert_endpoint.c.id > (after or "")).order_by(alert_endpoint.c.id).limit(limit)
    if tenant_id is not None:
        query = query.where(alert_endpoint.c.tenant_id == tenant_id)
    return [Endpoint(**row._mapping) for row in await connection.execute(query)]


async def change_endpoint(
    connection: AsyncConnection, endpoint_id: AlertEndpointId, *, changes: Mapping[str, Any], now: datetime
) -> Endpoint:
    """The endpoint with another name, address or status. What waits for a disabled one is dead."""
    values = dict(changes)
    if values.get("status") == "active":
        values["disabled_because"] = None
    changed = update(alert_endpoint).where(alert_endpoint.c.id == endpoint_id)
    row = (await connection.execute(changed.values(values).returning(alert_endpoint))).one_or_none()
    if row is None:
        _unknown(endpoint_id)
    if row.status != "active":
        await end_pending(connection, endpoint_id, because=f"the endpoint was {row.status}", now=now)
    return Endpoint(**row._mapping)


async def remove_endpoint(
    connection: AsyncConnection, endpoint_id: AlertEndpointId, *, now: datetime
) -> Endpoint:
    """The endpoint, removed with its secret. What was delivered to it stays on record."""
    removed = await change_endpoint(connection, endpoint_id, changes={"status": "removed"}, now=now)
    await connection.execute(delete(alert_secret).where(alert_secret.c.endpoint_id == endpoint_id))
    return removed


async def lock_endpoint(connection: AsyncConnection, endpoint_id: AlertEndpointId) -> str:
    """The status of an endpoint, which stays so until the commit."""
    query = select(alert_endpoint.c.status).where(alert_endpoint.c.id == endpoint_id)
    return str((await connection.execute(query.with_for_update(key_share=True))).scalar_one())


async def end_pending(
    connection: AsyncConnection, endpoint_id: AlertEndpointId, *, because: str, now: datetime
) -> None:
    """Let what waits for an endpoint be dead: it can be retried when the endpoint is active again."""
    waiting = (alert_delivery.c.endpoint_id == endpoint_id) & (alert_delivery.c.status == "pending")
    dead = {"status": "dead", "ended_at": now, "last_error": because}
    await connection.execute(update(alert_delivery).where(waiting).values(dead))


def _unknown(endpoint_id: str) -> NoReturn:
    raise Rejected(
        RejectReason.NOT_FOUND,
        f"There is no alert endpoint {endpoint_id[:100]!r}.",
        status=404,
        kind="alert endpoint",
        id=endpoint_id[:100],
    )
