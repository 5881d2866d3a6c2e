"""`/tenants/{id}/limit-overrides`: limits of one scope that stand in a plan's place."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads, Writes, WritesMoney
from app.control.limit_shapes import (
    AmountIn,
    LimitTerms,
    amount_of,
    model_of,
    names_for,
    shown_subject,
    subject_of,
    text_of_amount,
    unit_of,
)
from app.control.schemas import Identifier, Moment, Name, Out, Page, PagingQuery
from app.control.views.routes import router
from app.core.ids import TenantId
from app.identity.errors import invalid
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from billing.quota import limits
from billing.quota.terms import Override, not_found
from billing.quota.terms import Scope as ScopeKind

api = router("limits")


class OverrideIn(LimitTerms):
    scope_kind: ScopeKind = "tenant"
    scope_id: Identifier | None = Field(None, description="Of a project or key; null: the tenant itself.")
    amount: AmountIn | None = Field(description="Null: no limit.")
    effective_from: Moment | None = Field(None, description="Included; null: now. Never in the past.")
    expires_at: Moment | None = Field(None, description="Not included; null: until it is revoked.")
    reason: Name = Field(examples=["Launch week"])


class OverrideOut(Out):
    """A limit of one scope in a plan's place, in [effective_from, expires_at); the newest counts."""

    id: str
    tenant_id: str
    scope_kind: str
    scope_id: str
    what: str
    window: str
    model_id: str | None
    model: str | None
    amount: str | None = Field(description="Null: no limit.")
    burst: str | None
    unit: str
    effective_from: datetime
    expires_at: datetime | None
    reason: str
    created_by: str
    created_at: datetime
    revoked_at: datetime | None


@api.post("/tenants/{tenant_id}/limit-overrides", status_code=201, summary="Set a limit in a plan's place")
async def create_override(
    tenant_id: str, body: OverrideIn, call: Annotated[Call, Depends(WritesMoney(Scope.LIMITS_WRITE))]
) -> OverrideOut:
    """Of the tenant, or of one of its projects or keys. In every gateway within a second."""
    owner = await get_tenant(call.connection, tenant_id, within=call.within)
    if (body.scope_id is None) is not (body.scope_kind == "tenant") and body.scope_id != owner.id:
        invalid("Say which project or key.", param="scope_id")
    made = await limits.override(
        call.connection,
        tenant_id=owner.id,
        scope_id=body.scope_id or owner.id,
        subject=subject_of(body, body.scope_kind, model_id=await model_of(call.connection, body.model)),
        amount=amount_of(body.amount, what=body.what),
        burst=amount_of(body.burst, what=body.what, param="burst"),
        effective_from=body.effective_from,
        expires_at=body.expires_at,
        reason=body.reason,
        by=call.actor.id,
    )
    shown = (await _overrides(call, [made], currency=owner.currency))[0]
    after = shown.model_dump(mode="json")
    call.trail.note("limit_override.create", made.id, tenant_id=owner.id, after=after)
    return shown


@api.get("/tenants/{tenant_id}/limit-overrides", summary="List a tenant's overrides")
async def list_overrides(
    tenant_id: str,
    paging: PagingQuery,
    call: Annotated[Call, Depends(Reads(Scope.LIMITS_READ))],
    *,
    ended: Annotated[bool, Query(description="Also those that were revoked or have expired.")] = False,
) -> Page[OverrideOut]:
    owner = await get_tenant(call.connection, tenant_id, within=call.within)
    rows = await limits.list_overrides(
        call.connection, tenant_id=owner.id, ended=ended, after=paging.after, limit=paging.fetch
    )
    shown = {each.id: each for each in await _overrides(call, rows, currency=owner.currency)}
    return paging.page(rows, lambda row: shown[row.id])


@api.post(
    "/limit-overrides/{override_id}/revoke", summary="Revoke an override: what it stood before holds again"
)
async def revoke_override(
    override_id: str, call: Annotated[Call, Depends(Writes(Scope.LIMITS_WRITE))]
) -> OverrideOut:
    before = await limits.get_override(call.connection, override_id)
    if call.within not in (None, before.tenant_id):
        raise not_found("override", override_id)
    after = await limits.revoke(call.connection, override_id)
    currency = await _currency(call, before.tenant_id)
    was, now = await _overrides(call, [before, after], currency=currency)
    if before.revoked_at is None:
        facts = {"before": was.model_dump(mode="json"), "after": now.model_dump(mode="json")}
        call.trail.note("limit_override.revoke", now.id, tenant_id=before.tenant_id, **facts)
    return now


async def _currency(call: Call, tenant_id: TenantId) -> str:
    return (await get_tenant(call.connection, tenant_id, within=call.within)).currency


async def _overrides(call: Call, rows: list[Override], *, currency: str) -> list[OverrideOut]:
    names = await names_for(call.connection, (row.subject for row in rows))
    return [
        OverrideOut(
            id=row.id,
            tenant_id=row.tenant_id,
            scope_kind=row.subject.scope_kind,
            scope_id=row.scope_id,
            **shown_subject(row.subject, names),
            amount=text_of_amount(row.amount, what=row.subject.what),
            burst=text_of_amount(row.burst, what=row.subject.what),
            unit=unit_of(row.subject.what, currency=currency),
            effective_from=row.effective_from,
            expires_at=row.expires_at,
            reason=row.reason,
            created_by=row.created_by,
            created_at=row.created_at,
            revoked_at=row.revoked_at,
        )
        for row in rows
    ]
