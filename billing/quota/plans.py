"""Plans and who has which: in the caller's transaction, never committing.

A change of a plan's limits, an assignment and its withdrawal bring the tenants' allowances up to date; that
locks them, so it is the transaction's last step, and once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import PlanAssignmentId, PlanId, PriceBookId, TenantId
from billing.quota.tables import plan, plan_assignment, plan_limit, tenant_limits
from billing.quota.terms import Assignment, Plan, PlanLimit, Subject, check_limit, not_found

_TENANTS = bindparam("tenants", type_=ARRAY(Text))
_RESOLVE = text("SELECT quota_resolve_all(:tenants, NULL)").bindparams(_TENANTS)
_TELL = text(
    "SELECT pg_notify('steelyard_changes', 'limits:' || id) FROM unnest(CAST(:tenants AS text[])) AS id"
).bindparams(_TENANTS)


async def create_plan(
    connection: AsyncConnection,
    *,
    name: str,
    description: str = "",
    currency: str | None = None,
    price_book_id: PriceBookId | None = None,
    limits: Sequence[PlanLimit] = (),
) -> Plan:
    """A new plan. Raises Conflict if its name is taken, Rejected if a limit can't be."""
    if await connection.scalar(select(plan.c.id).where(plan.c.name == name)) is not None:
        raise Conflict("There is a plan of this name.", name=name)
    values = {
        "id": ids.plan_id(),
        "name": name,
        "description": description,
        "currency": currency,
        "price_book_id": price_book_id,
    }
    created = _plan((await connection.execute(insert(plan).values(values).returning(plan))).one())
    await _put_limits(connection, created, limits=limits)
    return created


async def get_plan(connection: AsyncConnection, plan_id: str, *, lock: bool = False) -> Plan:
    """The plan. Raises Rejected (404) if there is none."""
    query = select(plan).where(plan.c.id == plan_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        raise not_found("plan", plan_id)
    return _plan(row)


async def list_plans(
    connection: AsyncConnection, *, archived: bool = False, after: str | None, limit: int
) -> list[Plan]:
    """Plans in the order of their making, after a given one; with or without archived ones."""
    query = select(plan).where(plan.c.id > (after or "")).order_by(plan.c.id).limit(limit)
    if not archived:
        query = query.where(plan.c.archived_at.is_(None))
    return [_plan(row) for row in await connection.execute(query)]


async def list_limits(connection: AsyncConnection, plan_id: PlanId) -> list[PlanLimit]:
    """The limits of a plan, those of the tenant first."""
    query = select(plan_limit).where(plan_limit.c.plan_id == plan_id)
    found = [
        PlanLimit(
            subject=Subject(row.level, row.what, row.window_kind, row.model_id),
            amount=row.amount,
            burst=row.burst,
        )
        for row in await connection.execute(query)
    ]
    depth = {"tenant": 0, "project": 1, "key": 2}
    return sorted(
        found,
        key=lambda each: (
            depth[each.subject.scope_kind],
            each.subject.model_id or "",
            each.subject.what,
            each.subject.window,
        ),
    )


async def describe_plan(connection: AsyncConnection, plan_id: str, *, name: str, description: str) -> Plan:
    """The plan with another name and description. Raises Conflict if the name is another plan's."""
    taken = select(plan.c.id).where(plan.c.name == name, plan.c.id != plan_id)
    if await connection.scalar(taken) is not None:
        raise Conflict("There is a plan of this name.", name=name)
    await get_plan(connection, plan_id)
    changed = update(plan).where(plan.c.id == plan_id).values(name=name, description=description)
    return _plan((await connection.execute(changed.returning(plan))).one())


async def archive_plan(connection: AsyncConnection, plan_id: str, *, now: datetime) -> Plan:
    """The plan, not to be assigned any more; tenants who have it keep it. Idempotent."""
    found = await get_plan(connection, plan_id, lock=True)
    if found.archived_at is not None:
        return found
    changed = update(plan).where(plan.c.id == plan_id).values(archived_at=now).returning(plan)
    return _plan((await connection.execute(changed)).one())


async def replace_limits(connection: AsyncConnection, plan_id: str, *, limits: Sequence[PlanLimit]) -> None:
    """Make these the limits of a plan, all of them, for all tenants who have it or will. A last step."""
    found = await get_plan(connection, plan_id, lock=True)  # whoever assigns it waits, or we see them
    await connection.execute(delete(plan_limit).where(plan_limit.c.plan_id == plan_id))
    await _put_limits(connection, found, limits=limits)
    holders = select(plan_assignment.c.tenant_id).where(plan_assignment.c.plan_id == plan_id).distinct()
    await _resolve(connection, list((await connection.execute(holders)).scalars()))


def check_limits(owner: Plan, limits: Sequence[PlanLimit]) -> None:
    """Nothing if these can be a plan's limits. Raises Rejected or Conflict that says why not."""
    for each in limits:
        check_limit(each.subject, amount=each.amount, burst=each.burst)
    if len({each.subject for each in limits}) != len(limits):
        raise Conflict("A plan has one limit for one subject.", id=owner.id)
    if owner.currency is None and any(each.subject.what == "picos" for each in limits):
        raise Conflict("A plan that limits money has a currency.", id=owner.id)


async def assign(
    connection: AsyncConnection,
    *,
    tenant_id: TenantId,
    plan_id: str | None,
    effective_from: datetime | None = None,
    by: str,
) -> Assignment | None:
    """The tenant has this plan from then on (default: now), or none (None). A last step.

    The assignment that it has by then ends there. Raises Conflict if the plan is archived or in another
    currency than the tenant's, if it would begin in the past, or if a later one is scheduled.
    """
    if plan_id is not None:
        await _require_assignable(connection, plan_id, tenant_id=tenant_id)
    now = await lock_limits(connection, tenant_id)
    start = effective_from or now
    if start < now:
        raise Conflict("A plan can't begin in the past: what was served then is counted.", id=tenant_id)
    begins = plan_assignment.c.effective_from
    mine = select(plan_assignment).where(plan_assignment.c.tenant_id == tenant_id).order_by(begins.desc())
    newest = (await connection.execute(mine.limit(1))).one_or_none()
    if newest is not None and newest.effective_from >= start:
        raise Conflict(
            "A plan is scheduled from then on, or later: withdraw it first.",
            id=newest.id,
            effective_from=newest.effective_from.isoformat(),
        )
    if newest is not None and (newest.effective_to is None or newest.effective_to > start):
        await _end(connection, newest.id, at=start)
    made = None
    if plan_id is not None:
        made = await _begin(connection, tenant_id, plan_id=plan_id, start=start, by=by)
    await _resolve(connection, [tenant_id])
    return made


async def withdraw(connection: AsyncConnection, assignment_id: str) -> Assignment:
    """The scheduled assignment that is withdrawn: the one that it would have ended goes on. A last step.

    Raises Rejected (404) if there is none, Conflict if it has begun: assign another plan, or none.
    """
    found = await _get_assignment(connection, assignment_id)
    now = await lock_limits(connection, found.tenant_id)
    found = await _get_assignment(connection, assignment_id)
    if found.effective_from <= now:
        raise Conflict("What has begun stands; assign another plan, or none.", id=assignment_id)
    await connection.execute(delete(plan_assignment).where(plan_assignment.c.id == assignment_id))
    before = (plan_assignment.c.tenant_id == found.tenant_id) & (
        plan_assignment.c.effective_to == found.effective_from
    )
    await connection.execute(update(plan_assignment).where(before).values(effective_to=found.effective_to))
    await _resolve(connection, [found.tenant_id])
    return found


async def list_assignments(
    connection: AsyncConnection, *, tenant_id: TenantId, after: str | None, limit: int
) -> list[Assignment]:
    """A tenant's assignments, past, present and scheduled, in the order of their making."""
    query = (
        select(plan_assignment)
        .where(plan_assignment.c.tenant_id == tenant_id, plan_assignment.c.id > (after or ""))
        .order_by(plan_assignment.c.id)
        .limit(limit)
    )
    return [Assignment(**row._mapping) for row in await connection.execute(query)]


async def lock_limits(connection: AsyncConnection, tenant_id: TenantId) -> datetime:
    """PostgreSQL's time, by which limits begin and end, once nobody else changes this tenant's.

    Raises Rejected (404) if there is no such tenant.
    """
    query = select(tenant_limits.c.version).where(tenant_limits.c.tenant_id == tenant_id)
    if await connection.scalar(query.with_for_update()) is None:
        raise not_found("tenant", tenant_id)
    moment: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return moment


async def _require_assignable(connection: AsyncConnection, plan_id: str, *, tenant_id: TenantId) -> None:
    """The plan stays as it is meanwhile: whoever replaces its limits waits, or comes first."""
    query = select(plan).where(plan.c.id == plan_id).with_for_update(read=True)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise not_found("plan", plan_id)
    found = _plan(row)
    if found.archived_at is not None:
        raise Conflict("The plan is archived.", id=plan_id)
    currency = await connection.scalar(
        text("SELECT currency FROM tenant WHERE id = :id").bindparams(id=tenant_id)
    )
    if currency is not None and found.currency not in (None, currency):
        raise Conflict(
            f"The plan's money is {found.currency}, the tenant's {currency}.", id=plan_id, currency=currency
        )


async def _begin(
    connection: AsyncConnection, tenant_id: TenantId, *, plan_id: str, start: datetime, by: str
) -> Assignment:
    values = {
        "id": ids.plan_assignment_id(),
        "tenant_id": tenant_id,
        "plan_id": plan_id,
        "effective_from": start,
        "created_by": by,
    }
    made = insert(plan_assignment).values(values).returning(plan_assignment)
    return Assignment(**(await connection.execute(made)).one()._mapping)


async def _end(connection: AsyncConnection, assignment_id: PlanAssignmentId, *, at: datetime) -> None:
    ended = update(plan_assignment).where(plan_assignment.c.id == assignment_id).values(effective_to=at)
    await connection.execute(ended)


async def _get_assignment(connection: AsyncConnection, assignment_id: str) -> Assignment:
    query = select(plan_assignment).where(plan_assignment.c.id == assignment_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise not_found("assignment", assignment_id)
    return Assignment(**row._mapping)


async def _put_limits(connection: AsyncConnection, owner: Plan, *, limits: Sequence[PlanLimit]) -> None:
    """Add these limits to a plan that has none."""
    check_limits(owner, limits)
    rows = [
        {
            "plan_id": owner.id,
            "level": each.subject.scope_kind,
            "model_id": each.subject.model_id,
            "what": each.subject.what,
            "window_kind": each.subject.window,
            "amount": each.amount,
            "burst": each.burst,
        }
        for each in limits
    ]
    if rows:
        await connection.execute(insert(plan_limit), rows)


async def _resolve(connection: AsyncConnection, tenant_ids: Sequence[TenantId]) -> None:
    """Bring these tenants' limits up to date, and tell that another plan, with other prices, may hold."""
    await connection.execute(_RESOLVE, {"tenants": list(tenant_ids)})
    await connection.execute(_TELL, {"tenants": list(tenant_ids)})


def _plan(row: Any) -> Plan:
    return Plan(**row._mapping)
