"""`/alerts` and `/alert-rules`: what a tenant was told of its limits, and at which thresholds it is told."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads, Writes
from app.control.reach import tenant_within
from app.control.schemas import Identifier, In, Money, Out, Page, PagingQuery, Patch, picos
from app.control.views.routes import router
from app.core.ids import TenantId
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from billing.alerts import outbox, rules
from billing.alerts.message import facts_of
from billing.alerts.model import DEFAULT_PERCENTS, Alert, MarkKind, Rule

api = router("alerts")
_Id = Annotated[str | None, Query(max_length=200)]
_Reader = Annotated[Call, Depends(Reads(Scope.ALERTS_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.ALERTS_WRITE))]
_Percents = Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(max_length=10)]
_Rest = Annotated[
    Money | None, Field(description="For the wallet: told when less than this is left; null: never.")
]
OwnTenant = Annotated[
    Identifier | None, Field(description="Null: the caller's own; the operator's staff says which.")
]
What = Literal["picos", "tokens", "input_tokens", "output_tokens", "requests"]
Window = Literal["balance", "day", "week", "month"]
ScopeKind = Literal["tenant", "project", "key", "task"]


class RuleIn(In):
    tenant_id: OwnTenant = None
    scope_kind: ScopeKind | None = Field(None, description="Null: allowances of every kind of scope.")
    scope_id: Identifier | None = Field(None, description="Null: all scopes of the kind.")
    what: What | None = Field(None, description="Null: whatever is counted. `picos` is money.")
    window: Window | None = Field(None, description="`balance`: wallets and tasks. Null: every window.")
    percents: _Percents = Field(list(DEFAULT_PERCENTS), description="Shares of the limit; none: silence.")
    remaining: _Rest = None


class RulePatch(Patch):
    nullable: ClassVar[frozenset[str]] = frozenset({"remaining"})
    percents: _Percents | None = None
    remaining: _Rest = None


class RuleOut(Out):
    """At which thresholds a tenant is told of the allowances that it fits. The most specific rule counts."""

    id: str
    tenant_id: str
    scope_kind: str | None
    scope_id: str | None
    what: str | None
    window: str | None
    percents: list[int]
    remaining: str | None
    created_by: str
    created_at: datetime


class AlertOut(Out):
    """A threshold that was reached, with the numbers of that moment; `used = spent + outstanding`.

    Money is in units of `currency`; else amounts count `unit`.
    """

    id: str
    tenant_id: str
    allowance_id: str
    kind: MarkKind = Field(description="`percent` of the limit used, or less than `threshold` `remaining`.")
    threshold: str
    limit: str
    spent: str
    outstanding: str = Field(description="Lent to gateway processes then: in use or free there.")
    used: str
    remaining: str
    unit: str
    currency: str | None
    scope_kind: str
    scope_id: str
    scope_name: str | None
    model_id: str | None
    window: str
    period_start: datetime | None
    period_end: datetime | None
    at: datetime
    rearmed_at: datetime | None = Field(description="When a raised limit let it be told once more.")


@api.get("/alerts", summary="List alerts, newest first")
async def list_alerts(
    paging: PagingQuery, call: _Reader, *, tenant_id: _Id = None, allowance_id: _Id = None
) -> Page[AlertOut]:
    only = {"tenant_id": tenant_within(call, tenant_id), "allowance_id": allowance_id}
    rows = await outbox.list_alerts(call.connection, only=only, before=paging.after, limit=paging.fetch)
    return paging.page(rows, _alert)


@api.get("/alerts/{alert_id}", summary="Show an alert")
async def show_alert(alert_id: str, call: _Reader) -> AlertOut:
    return _alert(await outbox.get_alert(call.connection, alert_id, within=call.within))


@api.post("/alert-rules", status_code=201, summary="Set thresholds for some of a tenant's allowances")
async def create_rule(body: RuleIn, call: _Writer) -> RuleOut:
    """A tenant without a rule is told at 50, 80 and 100 %. Followed within seconds, also for what is used."""
    tenant_id = await tenant_of(call, body.tenant_id)
    if body.scope_id is not None and body.scope_kind is None:
        invalid("A scope has a kind.", param="scope_kind")
    terms = body.model_dump(include={"scope_kind", "scope_id", "what"})
    terms |= {"window_kind": body.window} | _thresholds(body.percents, body.remaining)
    made = await rules.create_rule(
        call.connection, tenant_id, terms=terms, created_by=call.actor.id, now=call.now
    )
    return _noted(call, "alert_rule.create", after=made)


@api.get("/alert-rules", summary="List alert rules")
async def list_rules(paging: PagingQuery, call: _Reader, *, tenant_id: _Id = None) -> Page[RuleOut]:
    tenant = tenant_within(call, tenant_id)
    rows = await rules.list_rules(
        call.connection,
        tenant_id=None if tenant is None else TenantId(tenant),
        after=paging.after,
        limit=paging.fetch,
    )
    return paging.page(rows, _rule)


@api.get("/alert-rules/{rule_id}", summary="Show an alert rule")
async def show_rule(rule_id: str, call: _Reader) -> RuleOut:
    return _rule(await rules.get_rule(call.connection, rule_id, within=call.within))


@api.patch("/alert-rules/{rule_id}", summary="Change the thresholds of an alert rule")
async def change_rule(rule_id: str, body: RulePatch, call: _Writer) -> RuleOut:
    """What was told is not told again."""
    before = await rules.get_rule(call.connection, rule_id, within=call.within)
    changes = body.changes()
    if not changes:
        return _rule(before)
    percents = list(before.percents) if body.percents is None else body.percents
    thresholds = _thresholds(percents, body.remaining)
    values = {name: value for name, value in thresholds.items() if name in changes}
    after = await rules.change_rule(call.connection, before.id, changes=values)
    return _noted(call, "alert_rule.change", before=before, after=after)


@api.delete("/alert-rules/{rule_id}", summary="Remove an alert rule")
async def remove_rule(rule_id: str, call: _Writer) -> RuleOut:
    """What it fitted follows the next most specific rule."""
    before = await rules.get_rule(call.connection, rule_id, within=call.within)
    await rules.remove_rule(call.connection, before)
    return _noted(call, "alert_rule.remove", before=before)


async def tenant_of(call: Call, asked: str | None) -> TenantId:
    """The tenant that something is made for. Raises Rejected if none is in reach, or none is said."""
    tenant_id = tenant_within(call, asked)
    if tenant_id is None:
        invalid("Say for which tenant.", param="tenant_id")
    return (await get_tenant(call.connection, tenant_id, within=call.within)).id


def _thresholds(percents: list[int], remaining: str | None) -> dict[str, Any]:
    rest = None if remaining is None else picos(remaining)
    if rest is not None and rest <= 0:
        invalid("What remains is more than nothing.", param="remaining")
    return {"percents": sorted(set(percents)), "remaining": rest}


def _noted(call: Call, action: str, *, before: Rule | None = None, after: Rule | None = None) -> RuleOut:
    shown = {name: _rule(each) for name, each in (("before", before), ("after", after)) if each is not None}
    last = shown.get("after") or shown["before"]
    facts = {name: each.model_dump(mode="json") for name, each in shown.items()}
    call.trail.note(action, last.id, tenant_id=last.tenant_id, **facts)
    return last


def _rule(rule: Rule) -> RuleOut:
    return RuleOut(
        id=rule.id,
        tenant_id=rule.tenant_id,
        scope_kind=rule.scope_kind,
        scope_id=rule.scope_id,
        what=rule.what,
        window=rule.window_kind,
        percents=list(rule.percents),
        remaining=None if rule.remaining is None else format_picos(rule.remaining),
        created_by=rule.created_by,
        created_at=rule.created_at,
    )


def _alert(alert: Alert) -> AlertOut:
    return AlertOut(**facts_of(alert), rearmed_at=alert.rearmed_at)
