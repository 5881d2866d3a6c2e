"""The outbox: deliveries are claimed, tried, and end delivered or dead.

A claim is a short commit of its own: nobody holds a lock while a receiver is waited for. It sets the time of
the next try ahead, so a delivery whose worker dies is tried again then, with the same id: at least once, and
for its receiver always the same message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

import msgspec
from sqlalchemy import Row, Select, func, insert, lateral, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import AlertEndpointId, AlertId, TenantId
from billing.alerts.endpoints import end_pending, lock_endpoint
from billing.alerts.model import Alert, Attempt, Delivery, Endpoint, MarkKind, Outcome
from billing.alerts.retry import wait_ms
from billing.alerts.tables import alert, alert_delivery, alert_endpoint, alert_secret

CLAIM = timedelta(seconds=60)
"""Longer than any attempt takes."""
AT_ONCE = 64
AT_ONCE_OF_ENDPOINT = 4
GONE = "the receiver answered 410 Gone"


class Waiting(msgspec.Struct, frozen=True):
    """What is in the outbox.   oldest_at: when the oldest pending delivery was written."""

    pending: int
    dead: int
    oldest_at: datetime | None


async def claim(connection: AsyncConnection, *, now: datetime, limit: int = AT_ONCE) -> list[Attempt]:
    """Deliveries that are due, now ours for `CLAIM`; commit before they are tried.

    Few of each endpoint and of each tenant in turn: a receiver that is slow holds up no other.
    """
    chosen = await connection.execute(_due(now=now, limit=limit))
    this = alert_delivery.c.id.in_([row.id for row in chosen])
    held = select(alert_delivery.c.id).where(this, _is_due(now)).with_for_update(skip_locked=True)
    ours = update(alert_delivery).where(alert_delivery.c.id.in_(held))
    ours = ours.values(attempts=alert_delivery.c.attempts + 1, next_at=now + CLAIM)
    rows = await connection.execute(ours.returning(alert_delivery))
    deliveries = [Delivery(**row._mapping) for row in rows]
    return await _attempts(connection, deliveries)


async def record(
    connection: AsyncConnection, attempt: Attempt, *, outcome: Outcome, now: datetime, draw: float
) -> str:
    """The delivery's status after an attempt: `delivered`, `pending` or `dead`.

    A failure counts for the attempt that was claimed last only; a success for any.   draw: in [0, 1).
    Of several in one transaction, those come first whose endpoints have lower ids.
    """
    await lock_endpoint(connection, attempt.delivery.endpoint_id)
    this = (alert_delivery.c.id == attempt.delivery.id) & (alert_delivery.c.status == "pending")
    values: dict[str, Any] = {"last_status": outcome.status, "last_error": outcome.error}
    if outcome.error is None:
        values |= {"status": "delivered", "ended_at": now}
    else:
        this &= alert_delivery.c.attempts == attempt.delivery.attempts
        wait = None if outcome.gone else wait_ms(attempt.delivery.attempts, draw=draw)
        dead = {"status": "dead", "ended_at": now}
        values |= dead if wait is None else {"next_at": now + timedelta(milliseconds=wait)}
    await connection.execute(update(alert_delivery).where(this).values(values))
    if outcome.gone:
        await _disable(connection, attempt.delivery.endpoint_id, now=now)
    return str(values.get("status", "pending"))


async def retry(
    connection: AsyncConnection, delivery_id: str, *, within: TenantId | None, now: datetime
) -> Delivery:
    """A dead delivery, pending again as if it were new. Raises Rejected (404), Conflict if it is not dead."""
    found = await get_delivery(connection, delivery_id, within=within)
    if await lock_endpoint(connection, found.endpoint_id) != "active":
        raise Conflict("Its endpoint is not active.", endpoint_id=found.endpoint_id)
    this = (alert_delivery.c.id == delivery_id) & (alert_delivery.c.status == "dead")
    anew = {"status": "pending", "attempts": 0, "next_at": now, "ended_at": None}
    row = (
        await connection.execute(update(alert_delivery).where(this).values(anew).returning(alert_delivery))
    ).one_or_none()
    if row is None:
        raise Conflict(f"The delivery is {found.status}; only a dead one is retried.", status=found.status)
    return Delivery(**row._mapping)


async def send_test(connection: AsyncConnection, endpoint: Endpoint, *, now: datetime) -> Delivery:
    """A pending delivery of a test. Raises Conflict if one is pending, or the endpoint is disabled."""
    if await lock_endpoint(connection, endpoint.id) != "active":
        raise Conflict("The endpoint is disabled.", endpoint_id=endpoint.id)
    tests = (alert_delivery.c.endpoint_id == endpoint.id) & alert_delivery.c.alert_id.is_(None)
    pending = select(alert_delivery.c.id).where(tests, alert_delivery.c.status == "pending")
    if (await connection.execute(pending)).first() is not None:
        raise Conflict("A test of this endpoint is pending.", endpoint_id=endpoint.id)
    values = {
        "id": ids.alert_delivery_id(),
        "tenant_id": endpoint.tenant_id,
        "endpoint_id": endpoint.id,
        "next_at": now,
        "created_at": now,
    }
    row = (await connection.execute(insert(alert_delivery).values(values).returning(alert_delivery))).one()
    return Delivery(**row._mapping)


async def get_delivery(connection: AsyncConnection, delivery_id: str, *, within: TenantId | None) -> Delivery:
    """The delivery. Raises Rejected (404) if there is none within reach."""
    query = select(alert_delivery).where(alert_delivery.c.id == delivery_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        _unknown("alert delivery", delivery_id)
    return Delivery(**row._mapping)


async def list_deliveries(
    connection: AsyncConnection, *, only: Mapping[str, str | None], before: str | None, limit: int
) -> list[Delivery]:
    """Deliveries, newest first, below an id.   only: columns and what they are; None is anything."""
    query = select(alert_delivery).order_by(alert_delivery.c.id.desc()).limit(limit)
    query = _narrowed(query, alert_delivery.c, only=only)
    if before is not None:
        query = query.where(alert_delivery.c.id < before)
    return [Delivery(**row._mapping) for row in await connection.execute(query)]


async def list_alerts(
    connection: AsyncConnection, *, only: Mapping[str, str | None], before: str | None, limit: int
) -> list[Alert]:
    """Alerts, newest first, below an id.   only: columns and what they are; None is anything."""
    query = _narrowed(select(alert).order_by(alert.c.id.desc()).limit(limit), alert.c, only=only)
    if before is not None:
        query = query.where(alert.c.id < before)
    return [_alert(row) for row in await connection.execute(query)]


async def get_alert(connection: AsyncConnection, alert_id: str, *, within: TenantId | None) -> Alert:
    """The alert. Raises Rejected (404) if there is none within reach."""
    row = (await connection.execute(select(alert).where(alert.c.id == alert_id))).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        _unknown("alert", alert_id)
    return _alert(row)


async def waiting(connection: AsyncConnection) -> Waiting:
    """What waits in the outbox, and what is dead in it."""
    pending = alert_delivery.c.status == "pending"
    counts = select(func.count(), func.min(alert_delivery.c.created_at)).where(pending)
    count, oldest_at = (await connection.execute(counts)).one()
    dead = select(func.count()).where(alert_delivery.c.status == "dead")
    return Waiting(count, (await connection.execute(dead)).scalar_one(), oldest_at)


def _is_due(now: datetime) -> Any:
    return (alert_delivery.c.status == "pending") & (alert_delivery.c.next_at <= now)


def _due(*, now: datetime, limit: int) -> Select[Any]:
    """Ids of due deliveries: the oldest of each active endpoint, tenants in turn."""
    oldest = select(alert_delivery.c.id, alert_delivery.c.next_at)
    oldest = oldest.where(alert_delivery.c.endpoint_id == alert_endpoint.c.id, _is_due(now))
    of_endpoint = lateral(oldest.order_by(alert_delivery.c.next_at).limit(AT_ONCE_OF_ENDPOINT))
    turn = func.row_number().over(partition_by=alert_endpoint.c.tenant_id, order_by=of_endpoint.c.next_at)
    ranked = select(of_endpoint.c.id, of_endpoint.c.next_at, turn.label("turn"))
    ranked = ranked.select_from(alert_endpoint).join(of_endpoint, true())
    each = ranked.where(alert_endpoint.c.status == "active").subquery()
    return select(each.c.id).order_by(each.c.turn, each.c.next_at).limit(limit)


async def _attempts(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> list[Attempt]:
    if not deliveries:
        return []
    told = {AlertId(each.alert_id) for each in deliveries if each.alert_id is not None}
    rows = await connection.execute(select(alert).where(alert.c.id.in_(told)))
    alerts = {row.id: _alert(row) for row in rows}
    e = alert_endpoint.c
    query = select(e.id, e.kind, e.address, alert_secret.c.secret)
    query = query.outerjoin(alert_secret, alert_secret.c.endpoint_id == e.id)
    found = await connection.execute(query.where(e.id.in_({each.endpoint_id for each in deliveries})))
    endpoints = {row.id: row for row in found}
    return [
        Attempt(
            delivery=each,
            kind=endpoints[each.endpoint_id].kind,
            address=endpoints[each.endpoint_id].address,
            alert=None if each.alert_id is None else alerts[each.alert_id],
            secret=endpoints[each.endpoint_id].secret,
        )
        for each in deliveries
    ]


async def _disable(connection: AsyncConnection, endpoint_id: AlertEndpointId, *, now: datetime) -> None:
    this = (alert_endpoint.c.id == endpoint_id) & (alert_endpoint.c.status == "active")
    values = {"status": "disabled", "disabled_because": GONE}
    await connection.execute(update(alert_endpoint).where(this).values(values))
    await end_pending(connection, endpoint_id, because=GONE, now=now)


def _narrowed(query: Select[Any], columns: Any, *, only: Mapping[str, str | None]) -> Select[Any]:
    return query.where(*(columns[name] == value for name, value in only.items() if value is not None))


def _alert(row: Row[Any]) -> Alert:
    return Alert(**{**row._mapping, "kind": MarkKind(row.kind)})


def _unknown(kind: str, object_id: str) -> NoReturn:
    what = f"There is no {kind} {object_id[:100]!r}."
    raise Rejected(RejectReason.NOT_FOUND, what, status=404, kind=kind, id=object_id[:100])
