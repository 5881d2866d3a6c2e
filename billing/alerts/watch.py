"""Looks at allowances and writes what there is to say, with its outbox, in one transaction.

Allowances are locked first, in the order of their ids as everywhere; their marks are taken away next; only
then is anything read. So whoever raised a use waited for us, or we for him and saw it: no mark is lost, and
two workers at once never tell of one threshold twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, case, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.ids import AllowanceId, TenantId
from billing.alerts import scopes
from billing.alerts.decide import Decision, decide, marks_for
from billing.alerts.model import Mark, MarkKind, Rule, Standing
from billing.alerts.rules import list_rules_of
from billing.alerts.tables import (
    alert,
    alert_delivery,
    alert_due,
    alert_endpoint,
    alert_sweep,
    alert_watch,
)
from billing.quota.tables import allowance, lease

BATCH = 100
"""Most allowances of one transaction: they stay locked for its length."""


async def has_work(connection: AsyncConnection) -> bool:
    """Whether an allowance is marked, or a tenant's rules changed: all that most looks have to read."""
    marked, changed = select(alert_due).exists(), select(alert_sweep).exists()
    return bool(await connection.scalar(select(marked | changed)))


async def find_due(connection: AsyncConnection, *, limit: int = BATCH) -> list[AllowanceId]:
    """Allowances that are marked, first those of the lowest ids."""
    rows = await connection.execute(select(alert_due).order_by(alert_due.c.allowance_id).limit(limit))
    return [AllowanceId(row.allowance_id) for row in rows]


async def look(connection: AsyncConnection, allowance_ids: Sequence[AllowanceId], *, now: datetime) -> int:
    """How many alerts were raised of these allowances. Idempotent: what was told is not told again."""
    chosen = allowance.c.id.in_(allowance_ids)
    locked = select(allowance.c.id).where(chosen).order_by(allowance.c.id)
    await connection.execute(locked.with_for_update(key_share=True))
    await connection.execute(delete(alert_due).where(alert_due.c.allowance_id.in_(allowance_ids)))
    standings = await _standings(connection, allowance_ids)
    rules = await list_rules_of(connection, {standing.tenant_id for standing in standings})
    told = await _told(connection, allowance_ids)
    decisions = [(each, _decided(each, rules, told=told[each.allowance_id])) for each in standings]
    await _rearm(connection, decisions, now=now)
    await _remember_levels(connection, decisions)
    return await _raise(connection, decisions, now=now)


async def sweep(connection: AsyncConnection, *, now: datetime) -> int | None:
    """Look at the next allowances of a tenant whose rules changed; None: no tenant's did.

    A change during a sweep waits for its step and begins it anew.
    """
    waiting = select(alert_sweep).limit(1).with_for_update(skip_locked=True)
    row = (await connection.execute(waiting)).one_or_none()
    if row is None:
        return None
    living = allowance.c.period_end.is_(None) | (allowance.c.period_end > now)
    following = select(allowance.c.id).where(allowance.c.tenant_id == row.tenant_id, living)
    following = following.where(allowance.c.id > row.after).order_by(allowance.c.id).limit(BATCH)
    chosen = [AllowanceId(each) for each in (await connection.execute(following)).scalars()]
    this = alert_sweep.c.tenant_id == row.tenant_id
    if not chosen:
        await connection.execute(delete(alert_sweep).where(this))
        return 0
    await connection.execute(update(alert_sweep).where(this).values(after=chosen[-1]))
    return await look(connection, chosen, now=now)


async def find_missed(connection: AsyncConnection, *, now: datetime, limit: int = BATCH) -> list[AllowanceId]:
    """Allowances at or above their level without a mark: what changed by another way, such as a rebuild.

    Reads every living allowance: for now and then.
    """
    out = select(lease.c.allowance_id, func.sum(_OUT).label("amount")).where(_OUT > 0)
    lent = out.group_by(lease.c.allowance_id).subquery()
    used = allowance.c.spent + func.coalesce(lent.c.amount, 0)
    missed = (
        select(allowance.c.id)
        .outerjoin(alert_watch, alert_watch.c.allowance_id == allowance.c.id)
        .outerjoin(lent, lent.c.allowance_id == allowance.c.id)
        .where((alert_watch.c.level <= used) | (alert_watch.c.allowance_id.is_(None) & (used > 0)))
        .where(allowance.c.ended_at.is_(None))
        .where(allowance.c.period_end.is_(None) | (allowance.c.period_end > now))
        .limit(limit)
    )
    return [AllowanceId(each) for each in (await connection.execute(missed)).scalars()]


_OUT = lease.c.granted - lease.c.settled - lease.c.returned


def _decided(standing: Standing, rules: Iterable[Rule], *, told: dict[Mark, int]) -> Decision:
    own = [rule for rule in rules if rule.tenant_id == standing.tenant_id]
    return decide(standing, marks_for(standing, own), told=told)


async def _standings(connection: AsyncConnection, allowance_ids: Sequence[AllowanceId]) -> list[Standing]:
    out = select(func.coalesce(func.sum(_OUT), 0)).where(lease.c.allowance_id == allowance.c.id, _OUT > 0)
    columns = [allowance.c[name] for name in ("tenant_id", "scope_kind", "scope_id", "what", "window_kind")]
    query = select(
        allowance.c.id.label("allowance_id"),
        *columns,
        allowance.c.limit_amount.label("limit"),
        allowance.c.spent,
        out.scalar_subquery().label("outstanding"),
        allowance.c.ended_at.is_not(None).label("ended"),
    ).where(allowance.c.id.in_(allowance_ids))
    rows = (await connection.execute(query)).mappings()
    return [Standing(**{**row, "outstanding": int(row["outstanding"])}) for row in rows]


async def _told(
    connection: AsyncConnection, allowance_ids: Sequence[AllowanceId]
) -> dict[AllowanceId, dict[Mark, int]]:
    query = select(alert).where(alert.c.allowance_id.in_(allowance_ids), alert.c.rearmed_at.is_(None))
    told: dict[AllowanceId, dict[Mark, int]] = defaultdict(dict)
    for row in await connection.execute(query):
        mark = Mark(MarkKind(row.kind), row.threshold)
        told[AllowanceId(row.allowance_id)][mark] = row.spent + row.outstanding
    return told


Decisions = Sequence[tuple[Standing, Decision]]


async def _rearm(connection: AsyncConnection, decisions: Decisions, *, now: datetime) -> None:
    again = [
        {"this": standing.allowance_id, "mark": mark.kind.value, "value": mark.value}
        for standing, decision in decisions
        for mark in decision.rearmed
    ]
    if again:
        this = (alert.c.allowance_id == bindparam("this")) & (alert.c.kind == bindparam("mark"))
        this &= (alert.c.threshold == bindparam("value")) & alert.c.rearmed_at.is_(None)
        await connection.execute(update(alert).where(this).values(rearmed_at=now), again)


async def _remember_levels(connection: AsyncConnection, decisions: Decisions) -> None:
    levels = [
        {"allowance_id": standing.allowance_id, "level": decision.level} for standing, decision in decisions
    ]
    if levels:
        new = postgresql.insert(alert_watch)
        await connection.execute(
            new.on_conflict_do_update(index_elements=["allowance_id"], set_={"level": new.excluded.level}),
            levels,
        )


async def _raise(connection: AsyncConnection, decisions: Decisions, *, now: datetime) -> int:
    raised = [(standing, mark) for standing, decision in decisions for mark in decision.raised]
    if not raised:
        return 0
    labels = await _labels(connection, {standing.allowance_id for standing, _ in raised})
    rows = [
        {
            "id": ids.alert_id(),
            "tenant_id": standing.tenant_id,
            "allowance_id": standing.allowance_id,
            "kind": mark.kind.value,
            "threshold": mark.value,
            "scope_kind": standing.scope_kind,
            "scope_id": standing.scope_id,
            "what": standing.what,
            "window_kind": standing.window_kind,
            "limit_amount": standing.limit,
            "spent": standing.spent,
            "outstanding": standing.outstanding,
            "at": now,
            **labels[standing.allowance_id],
        }
        for standing, mark in raised
    ]
    await connection.execute(insert(alert), rows)
    await _address(connection, rows, now=now)
    return len(rows)


async def _address(connection: AsyncConnection, alerts: Sequence[dict[str, Any]], *, now: datetime) -> None:
    """Write the outbox: a delivery for each alert and active endpoint of its tenant."""
    tenants = {TenantId(row["tenant_id"]) for row in alerts}
    active = select(alert_endpoint.c.id, alert_endpoint.c.tenant_id)
    active = active.where(alert_endpoint.c.tenant_id.in_(tenants), alert_endpoint.c.status == "active")
    locked = active.order_by(alert_endpoint.c.id).with_for_update(read=True)
    endpoints = (await connection.execute(locked)).all()
    outbox = [
        {
            "id": ids.alert_delivery_id(),
            "tenant_id": endpoint.tenant_id,
            "endpoint_id": endpoint.id,
            "alert_id": row["id"],
            "next_at": now,
            "created_at": now,
        }
        for row in alerts
        for endpoint in endpoints
        if endpoint.tenant_id == row["tenant_id"]
    ]
    if outbox:
        await connection.execute(insert(alert_delivery), outbox)


async def _labels(
    connection: AsyncConnection, allowance_ids: Iterable[AllowanceId]
) -> dict[AllowanceId, dict[str, Any]]:
    """What an alert says of its allowance beside the numbers."""
    a = allowance.c
    query = select(
        a.id,
        a.model_id,
        a.period_start,
        a.period_end,
        scopes.scope_name().label("scope_name"),
        case((a.what == "picos", scopes.currency())).label("currency"),
    ).where(a.id.in_(set(allowance_ids)))
    rows = (await connection.execute(query)).mappings()
    return {
        AllowanceId(row["id"]): {name: value for name, value in row.items() if name != "id"} for row in rows
    }
