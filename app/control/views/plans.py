"""`/plans` and `/tenants/{id}/plan-assignments`: sets of limits, and who has which from when to when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads, Writes, WritesMoney
from app.control.limit_shapes import (
    PlanLimitIn,
    PlanLimitOut,
    names_for,
    plan_limits_of,
    shown_limit,
    shown_subject,
)
from app.control.schemas import Currency, Identifier, In, Moment, Name, Out, Page, PagingQuery, Patch, Text
from app.control.views.routes import router
from app.core.ids import PriceBookId
from app.identity.errors import invalid
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from app.insights import plans as holders
from app.insights.plans import Change, Holder
from billing.pricing import service as pricing
from billing.quota import plans
from billing.quota.terms import Assignment, Plan, PlanLimit, not_found

api = router("limits")
_MOST_SHOWN = 200
_Reader = Annotated[Call, Depends(Reads(Scope.LIMITS_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.LIMITS_WRITE))]
_Limits = Annotated[list[PlanLimitIn], Field(max_length=200)]


class PlanIn(In):
    name: Name = Field(examples=["Team"])
    description: Text = ""
    currency: Currency | None = Field(
        None, description="Of its amounts of money; null: that of its price book, or it has none."
    )
    price_book_id: Identifier | None = Field(
        None, description="For its tenants, unless one has a book of its own."
    )
    limits: _Limits = Field(default_factory=list)


class PlanPatch(Patch):
    name: Name | None = None
    description: Text | None = None


class PlanLimits(In):
    limits: _Limits = Field(description="All of them: what isn't here ends.")


class PlanOut(Out):
    """A set of limits.   currency: of its amounts of money; null: it has none and fits every tenant."""

    id: str
    name: str
    description: str
    currency: str | None
    price_book_id: str | None
    created_at: datetime
    archived_at: datetime | None


class PlanDetail(PlanOut):
    limits: list[PlanLimitOut]
    tenants: int | None = Field(description="How many have it or will; null: not for the caller to know.")


class LimitChange(Out):
    """A limit of a plan before and after; null: there is none."""

    level: str
    what: str
    window: str
    model_id: str | None
    model: str | None
    before: PlanLimitOut | None
    after: PlanLimitOut | None


class HolderOut(Out):
    """A tenant who has the plan in [effective_from, effective_to)."""

    tenant_id: str
    name: str
    effective_from: datetime
    effective_to: datetime | None
    overrides: int = Field(description="Own overrides that stand before limits that change.")


class PlanEffect(Out):
    """What another set of limits changes, and for whom; gateways follow within a second."""

    plan: PlanDetail
    applied: bool = Field(description="False: a preview, nothing was changed.")
    changes: list[LimitChange]
    tenants: list[HolderOut] = Field(description=f"The first {_MOST_SHOWN}.")


class AssignmentIn(In):
    plan_id: Identifier | None = Field(description="Null: no plan from then on.")
    effective_from: Moment | None = Field(None, description="Included; null: now. Never in the past.")


class AssignmentOut(Out):
    """A tenant has a plan in [effective_from, effective_to)."""

    id: str
    tenant_id: str
    plan_id: str
    plan: str
    effective_from: datetime
    effective_to: datetime | None
    created_by: str
    created_at: datetime


class AssignedOut(Out):
    """The assignment that was made; null: the tenant has no plan from then on."""

    assignment: AssignmentOut | None


@api.post("/plans", status_code=201, summary="Create a plan")
async def create_plan(body: PlanIn, call: _Writer) -> PlanDetail:
    currency = await _currency(call, body)
    made = await plans.create_plan(
        call.connection,
        name=body.name,
        description=body.description,
        currency=currency,
        price_book_id=None if body.price_book_id is None else PriceBookId(body.price_book_id),
        limits=await plan_limits_of(call.connection, body.limits),
    )
    shown = await _detail(call, made)
    call.trail.note("plan.create", made.id, after=shown.model_dump(mode="json"))
    return shown


@api.get("/plans", summary="List plans; a tenant's members see those that it has or had")
async def list_plans(
    paging: PagingQuery,
    call: _Reader,
    *,
    archived: Annotated[bool, Query(description="Archived ones too.")] = False,
) -> Page[PlanOut]:
    if call.within is None:
        rows = await plans.list_plans(
            call.connection, archived=archived, after=paging.after, limit=paging.fetch
        )
        return paging.page(rows, PlanOut.model_validate)
    mine = sorted(each for each in await holders.plans_of(call.connection, call.within))
    asked = [each for each in mine if each > (paging.after or "")][: paging.fetch]
    return paging.page(
        [await plans.get_plan(call.connection, each) for each in asked], PlanOut.model_validate
    )


@api.get("/plans/{plan_id}", summary="Show a plan with its limits")
async def show_plan(plan_id: str, call: _Reader) -> PlanDetail:
    if call.within is not None and plan_id not in await holders.plans_of(call.connection, call.within):
        raise not_found("plan", plan_id)
    return await _detail(call, await plans.get_plan(call.connection, plan_id))


@api.patch("/plans/{plan_id}", summary="Rename or describe a plan")
async def change_plan(plan_id: str, body: PlanPatch, call: _Writer) -> PlanDetail:
    before = await plans.get_plan(call.connection, plan_id, lock=True)
    changes = {"name": before.name, "description": before.description} | body.changes()
    after = await plans.describe_plan(call.connection, plan_id, **changes)
    _note(call, "plan.change", before=before, after=after)
    return await _detail(call, after)


@api.put("/plans/{plan_id}/limits", summary="Replace a plan's limits, or see what that would change")
async def replace_limits(
    plan_id: str,
    body: PlanLimits,
    call: _Writer,
    *,
    preview: Annotated[bool, Query(description="Say what it would change, and change nothing.")] = False,
) -> PlanEffect:
    """They hold for all tenants who have the plan, within a second; what was used stays counted."""
    found = await plans.get_plan(call.connection, plan_id, lock=not preview)
    before = await plans.list_limits(call.connection, found.id)
    after = await plan_limits_of(call.connection, body.limits)
    changed = holders.changes(before, after)
    tenants = await holders.list_holders(call.connection, found.id, changed=changed, most=_MOST_SHOWN)
    plans.check_limits(found, after)
    if not preview:
        await plans.replace_limits(call.connection, plan_id, limits=after)
        facts = {
            "before": await _shown(call, before, owner=found),
            "after": await _shown(call, after, owner=found),
        }
        plain = {
            name: {"limits": [each.model_dump(mode="json") for each in rows]} for name, rows in facts.items()
        }
        call.trail.note("plan.replace_limits", plan_id, **plain)
    return PlanEffect(
        plan=await _detail(call, found),
        applied=not preview,
        changes=await _changes(call, changed, owner=found),
        tenants=[_holder(each) for each in tenants],
    )


@api.post("/plans/{plan_id}/archive", summary="Archive a plan: it can't be assigned any more")
async def archive_plan(plan_id: str, call: _Writer) -> PlanDetail:
    """Tenants who have it keep it."""
    before = await plans.get_plan(call.connection, plan_id)
    after = await plans.archive_plan(call.connection, plan_id, now=call.now)
    if before != after:
        _note(call, "plan.archive", before=before, after=after)
    return await _detail(call, after)


@api.post("/tenants/{tenant_id}/plan-assignments", status_code=201, summary="Give a tenant a plan, or none")
async def assign_plan(
    tenant_id: str, body: AssignmentIn, call: Annotated[Call, Depends(WritesMoney(Scope.LIMITS_WRITE))]
) -> AssignedOut:
    """From now, or from a time ahead; the plan that it has by then ends there."""
    owner = await get_tenant(call.connection, tenant_id, within=call.within)
    made = await plans.assign(
        call.connection,
        tenant_id=owner.id,
        plan_id=body.plan_id,
        effective_from=body.effective_from,
        by=call.actor.id,
    )
    shown = None if made is None else await _assignment(call, made)
    after = body.model_dump(mode="json") if shown is None else shown.model_dump(mode="json")
    object_id = owner.id if shown is None else shown.id
    call.trail.note("plan_assignment.create", object_id, tenant_id=owner.id, after=after)
    return AssignedOut(assignment=shown)


@api.get("/tenants/{tenant_id}/plan-assignments", summary="List a tenant's plans: past, present, scheduled")
async def list_assignments(tenant_id: str, paging: PagingQuery, call: _Reader) -> Page[AssignmentOut]:
    owner = await get_tenant(call.connection, tenant_id, within=call.within)
    rows = await plans.list_assignments(
        call.connection, tenant_id=owner.id, after=paging.after, limit=paging.fetch
    )
    names = {each: (await plans.get_plan(call.connection, each)).name for each in {r.plan_id for r in rows}}
    return paging.page(rows, lambda row: _assigned(row, names[row.plan_id]))


@api.post("/plan-assignments/{assignment_id}/withdraw", summary="Withdraw a plan that is scheduled")
async def withdraw_assignment(assignment_id: str, call: _Writer) -> AssignmentOut:
    """What it would have ended goes on. What has begun stands: assign another plan, or none."""
    withdrawn = await plans.withdraw(call.connection, assignment_id)
    shown = await _assignment(call, withdrawn)
    before = shown.model_dump(mode="json")
    call.trail.note("plan_assignment.withdraw", shown.id, tenant_id=withdrawn.tenant_id, before=before)
    return shown


async def _currency(call: Call, body: PlanIn) -> str | None:
    """The currency of a plan with a price book is the book's."""
    if body.price_book_id is None:
        return body.currency
    book = await pricing.find_book(call.connection, PriceBookId(body.price_book_id))
    if book is None:
        invalid("There is no such price book.", param="price_book_id")
    if body.currency not in (None, book.currency):
        invalid(f"The price book is in {book.currency}, the plan in {body.currency}.", param="price_book_id")
    return book.currency


def _note(call: Call, action: str, *, before: Plan, after: Plan) -> None:
    facts = {
        name: PlanOut.model_validate(each).model_dump(mode="json")
        for name, each in (("before", before), ("after", after))
    }
    call.trail.note(action, after.id, **facts)


async def _detail(call: Call, found: Plan) -> PlanDetail:
    limits = await _shown(call, await plans.list_limits(call.connection, found.id), owner=found)
    tenants = None if call.within else await holders.count_holders(call.connection, found.id)
    known = PlanOut.model_validate(found).model_dump()
    return PlanDetail(**known, limits=limits, tenants=tenants)


async def _shown(call: Call, limits: list[PlanLimit], *, owner: Plan) -> list[PlanLimitOut]:
    names = await names_for(call.connection, (each.subject for each in limits))
    return [shown_limit(each, names, currency=owner.currency) for each in limits]


async def _changes(call: Call, changed: list[Change], *, owner: Plan) -> list[LimitChange]:
    names = await names_for(call.connection, (each.subject for each in changed))
    return [
        LimitChange(
            level=each.subject.scope_kind,
            **shown_subject(each.subject, names),
            before=each.before and shown_limit(each.before, names, currency=owner.currency),
            after=each.after and shown_limit(each.after, names, currency=owner.currency),
        )
        for each in changed
    ]


def _holder(each: Holder) -> HolderOut:
    return HolderOut(**{name: getattr(each, name) for name in Holder.__struct_fields__})


async def _assignment(call: Call, each: Assignment) -> AssignmentOut:
    return _assigned(each, (await plans.get_plan(call.connection, each.plan_id)).name)


def _assigned(each: Assignment, plan_name: str) -> AssignmentOut:
    facts = {name: getattr(each, name) for name in Assignment.__struct_fields__}
    return AssignmentOut(**facts, plan=plan_name)
