"""What limits a tenant has: overrides, and the limits that hold now with where they come from.

In the caller's transaction, never committing. An override and its revocation bring the tenant's allowances
up to date; that locks them, so it is the transaction's last step, and once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import TenantId
from billing.quota.plans import lock_limits
from billing.quota.tables import limit_override
from billing.quota.terms import EffectiveLimit, Override, Subject, check_limit, not_found

_EFFECTIVE = text("""
SELECT a.id, a.scope_kind, a.scope_id, a.model_id, a.what, a.window_kind, a.limit_amount AS amount, a.burst,
  a.period_start, a.period_end, split_part(a.limit_source, ':', 1) AS source_kind,
  split_part(a.limit_source, ':', 2) AS source_id, coalesce(p.name, o.reason) AS source_name,
  coalesce(s.effective_to, o.expires_at) AS until, a.spent, out.amount AS outstanding,
  CASE a.window_kind
    WHEN 'minute' THEN div((SELECT r_level FROM quota_level(a.id, clock_timestamp())), 1000000)
    ELSE a.limit_amount - a.spent - out.amount END AS available
FROM allowance a
CROSS JOIN LATERAL (SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) AS amount FROM lease l
  WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0) out
LEFT JOIN plan p ON 'plan:' || p.id = a.limit_source
LEFT JOIN limit_override o ON 'override:' || o.id = a.limit_source
LEFT JOIN plan_assignment s ON s.tenant_id = a.tenant_id AND s.plan_id = p.id
  AND s.effective_from <= :at AND (s.effective_to IS NULL OR s.effective_to > :at)
WHERE a.tenant_id = :tenant AND a.limit_source IS NOT NULL AND a.ended_at IS NULL
  AND coalesce(a.period_end, 'infinity') > :at AND coalesce(a.period_start, '-infinity') <= :at
  AND (CAST(:scopes AS text[]) IS NULL OR a.scope_id = ANY (CAST(:scopes AS text[])))
""")
_UNLIMITED = text("""
SELECT o.* FROM (
  SELECT DISTINCT ON (scope_kind, scope_id, model_id, what, window_kind) * FROM limit_override
  WHERE tenant_id = :tenant AND revoked_at IS NULL AND effective_from <= :at
    AND (expires_at IS NULL OR expires_at > :at)
  ORDER BY scope_kind, scope_id, model_id, what, window_kind, id DESC) o
WHERE o.amount IS NULL
""")
_DEPTH = {"tenant": 0, "project": 1, "key": 2}


async def override(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId,
    scope_id: str,
    subject: Subject,
    amount: int | None,
    burst: int | None = None,
    effective_from: datetime | None = None,
    expires_at: datetime | None = None,
    reason: str,
    by: str,
) -> Override:
    """A limit of the tenant, or of one project or key of it, in a plan's place; None: no limit. A last step.

    It begins now, or then; it ends by itself at its expiry. Raises Rejected if such a limit can't be or the
    scope isn't the tenant's, Conflict if it would begin in the past or end before it begins.
    """
    check_limit(subject, amount=amount, burst=burst)
    await _require_scope(connection, tenant_id, subject=subject, scope_id=scope_id)
    now = await lock_limits(connection, tenant_id)
    start = effective_from or now
    if start < now:
        raise Conflict("A limit can't begin in the past: what was served then is counted.", scope_id=scope_id)
    if expires_at is not None and expires_at <= start:
        raise Conflict("An override ends after it begins.", scope_id=scope_id)
    values = {
        "id": ids.override_id(),
        "tenant_id": tenant_id,
        "scope_kind": subject.scope_kind,
        "scope_id": scope_id,
        "model_id": subject.model_id,
        "what": subject.what,
        "window_kind": subject.window,
        "amount": amount,
        "burst": burst,
        "effective_from": start,
        "expires_at": expires_at,
        "reason": reason,
        "created_by": by,
    }
    made = insert(limit_override).values(values).returning(limit_override)
    created = _override((await connection.execute(made)).one()._mapping)
    await resolve(connection, tenant_id)
    return created


async def revoke(connection: AsyncConnection, override_id: str) -> Override:
    """The override, no longer in force: what it stood in the place of holds again. Idempotent. A last step.

    Raises Rejected (404) if there is none.
    """
    found = await get_override(connection, override_id)
    now = await lock_limits(connection, found.tenant_id)
    found = await get_override(connection, override_id)
    if found.revoked_at is not None:
        return found
    changed = update(limit_override).where(limit_override.c.id == override_id).values(revoked_at=now)
    row = (await connection.execute(changed.returning(limit_override))).one()
    await resolve(connection, found.tenant_id)
    return _override(row._mapping)


async def get_override(connection: AsyncConnection, override_id: str) -> Override:
    """The override. Raises Rejected (404) if there is none."""
    query = select(limit_override).where(limit_override.c.id == override_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise not_found("override", override_id)
    return _override(row._mapping)


async def list_overrides(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId,
    ended: bool = False,
    after: str | None,
    limit: int,
) -> list[Override]:
    """A tenant's overrides in the order of their making, after a given one; with or without ended ones."""
    mine = limit_override.c
    query = select(limit_override).where(mine.tenant_id == tenant_id, mine.id > (after or ""))
    if not ended:
        query = query.where(
            mine.revoked_at.is_(None), mine.expires_at.is_(None) | (mine.expires_at > func.now())
        )
    rows = await connection.execute(query.order_by(mine.id).limit(limit))
    return [_override(row._mapping) for row in rows]


async def effective(
    connection: AsyncConnection,
    tenant_id: TenantId,
    *,
    scope_ids: frozenset[str] | None = None,
    at: datetime | None = None,
) -> list[EffectiveLimit]:
    """The limits of a tenant that hold now, its own first.

    scope_ids: only those of these (the tenant, a project, a key).   at: a moment up to a day ahead: the
    periods that are open then.
    """
    moment = at or (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    asked = {"tenant": tenant_id, "at": moment}
    scopes = None if scope_ids is None else sorted(scope_ids)
    rows = await connection.execute(_EFFECTIVE, asked | {"scopes": scopes})
    found = [_limited(row) for row in rows.mappings()]
    found += [_unlimited(row) for row in (await connection.execute(_UNLIMITED, asked)).mappings()]
    return sorted(_within(found, scope_ids), key=_order)


async def resolve(connection: AsyncConnection, tenant_id: TenantId) -> datetime | None:
    """Bring a tenant's allowances up to date; returns when they change by themselves next. A last step."""
    moment: datetime | None = await connection.scalar(select(func.quota_resolve(tenant_id)))
    return moment


_SCOPES = {
    "tenant": text("SELECT id FROM tenant WHERE id = :id AND id = :tenant"),
    "project": text("SELECT id FROM project WHERE id = :id AND tenant_id = :tenant"),
    "key": text("SELECT id FROM api_key WHERE id = :id AND tenant_id = :tenant"),
}


async def _require_scope(
    connection: AsyncConnection, tenant_id: TenantId, *, subject: Subject, scope_id: str
) -> None:
    asked = {"id": scope_id, "tenant": tenant_id}
    if await connection.scalar(_SCOPES[subject.scope_kind], asked) is None:
        raise not_found(subject.scope_kind, scope_id)


def _within(found: list[EffectiveLimit], scope_ids: frozenset[str] | None) -> Iterator[EffectiveLimit]:
    return (each for each in found if scope_ids is None or each.scope_id in scope_ids)


def _order(each: EffectiveLimit) -> tuple[int, str, str, str, str]:
    subject = each.subject
    return (
        _DEPTH[subject.scope_kind],
        each.scope_id,
        subject.model_id or "",
        subject.what,
        subject.window,
    )


def _subject(row: Any) -> Subject:
    return Subject(row["scope_kind"], row["what"], row["window_kind"], row["model_id"])


def _override(row: Any) -> Override:
    named = ("scope_kind", "what", "window_kind", "model_id")
    return Override(subject=_subject(row), **{key: value for key, value in row.items() if key not in named})


def _limited(row: Any) -> EffectiveLimit:
    burst = None if row["burst"] is None else int(row["burst"])
    out, available = int(row["outstanding"]), int(row["available"])
    is_ceiling = row["window_kind"] == "request"
    return EffectiveLimit(
        allowance_id=row["id"],
        scope_id=row["scope_id"],
        subject=_subject(row),
        amount=int(row["amount"]),
        burst=burst,
        period_start=row["period_start"],
        period_end=row["period_end"],
        source_kind=row["source_kind"],
        source_id=row["source_id"],
        source_name=row["source_name"],
        until=row["until"],
        used=int(row["spent"]) if burst is None else max(burst - available - out, 0),
        outstanding=out,
        available=int(row["amount"]) if is_ceiling else available,
    )


def _unlimited(row: Any) -> EffectiveLimit:
    return EffectiveLimit(
        allowance_id=None,
        scope_id=row["scope_id"],
        subject=_subject(row),
        amount=None,
        burst=None,
        period_start=None,
        period_end=None,
        source_kind="override",
        source_id=row["id"],
        source_name=row["reason"],
        until=row["expires_at"],
        used=0,
        outstanding=0,
        available=0,
    )
