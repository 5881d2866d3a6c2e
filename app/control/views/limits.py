"""`/limits`: what holds for a tenant, project or key, where it comes from, and how it stands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import Field

from app.catalog import models
from app.control.call import Call, Reads, Writes
from app.control.limit_shapes import (
    text_of_amount,
    unit_of,
)
from app.control.place import find_place
from app.control.schemas import Out, Page
from app.control.views.routes import router
from app.identity.model import Scope
from app.insights import limits as insights
from app.insights.limits import Peak, Stand

api = router("limits")
_Id = Annotated[str | None, Query(max_length=200)]
_Reader = Annotated[Call, Depends(Reads(Scope.LIMITS_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.LIMITS_WRITE))]


class SourceOut(Out):
    """Where a limit comes from.   name: of the plan, or the reason of the override.   until: it ends then."""

    kind: str = Field(description="`plan`, `override`, or `wallet`.")
    id: str
    name: str
    until: datetime | None


class PeakOut(Out):
    amount: str
    at: datetime


class RefusedOut(Out):
    """Requests that this limit refused."""

    count: int
    since: datetime = Field(description="The start of its period; where it has none, seven days ago.")
    last: datetime | None


class LimitOut(Out):
    """A limit that holds now. Amounts are exact, in `unit`s."""

    allowance_id: str | None = Field(description="Where it is counted; null: there is no limit.")
    says: str = Field(examples=["this key: 40000 tokens per minute, from plan Team"])
    scope_kind: str
    scope_id: str
    scope_name: str
    what: str
    window: str = Field(description="`balance`: the wallet, which no time refills.")
    model_id: str | None
    model: str | None
    amount: str | None = Field(description="Null: no limit, by an override.")
    burst: str | None = Field(description="Of a rate, the most at once.")
    unit: str
    source: SourceOut
    used: str = Field(description="Settled; of a rate, what its bucket lacks and nobody holds.")
    leased: str = Field(
        description="Lent to gateway processes: held by running requests, or free there, to be recalled."
    )
    available: str = Field(description="What can still be lent; of a ceiling, the ceiling.")
    period_start: datetime | None
    resets_at: datetime | None = Field(
        description="When all is there again: the period's end; of a rate, when its bucket is full."
    )
    peak: PeakOut | None = Field(description="The most used, of rates, running requests and ceilings.")
    refused: RefusedOut


class LimitsOut(Page[LimitOut]):
    """The limits that a request has to keep to, all of them, the wallet first.

    Peaks are by the events of [peaks_since, at): a rate's most in a minute of the clock, the most requests
    that ran at once, the largest request. Null: nothing was used, or there are too many events to look at.
    """

    at: datetime
    peaks_since: datetime
    peaks_known: bool
    currency: str
    timezone: str


@api.get("/limits", summary="Show the limits of a tenant, project or key, and how each stands")
async def show_limits(
    call: Annotated[Call, Depends(Reads(Scope.USAGE_READ))],
    *,
    tenant_id: _Id = None,
    project_id: _Id = None,
    key_id: _Id = None,
    model: Annotated[
        str | None, Query(max_length=200, description="Id or name: only what a request for it has.")
    ] = None,
) -> LimitsOut:
    """Of a key: its own, its project's and its tenant's. An API key sees those of itself."""
    asked = {"tenant_id": tenant_id, "project_id": project_id, "key_id": key_id}
    owner, place = await find_place(call, asked, model=model)
    found = await insights.standing(call.connection, place)
    named = {each.model_id for each in found.stands if each.model_id is not None}
    names = await models.names_of(call.connection, named) if named else {}
    rows = [_limit(each, names, currency=owner.currency) for each in found.stands]
    return LimitsOut(
        data=rows,
        has_more=False,
        next=None,
        at=found.at,
        peaks_since=found.since,
        peaks_known=found.peaks_known,
        currency=owner.currency,
        timezone=owner.timezone,
    )


def _limit(stand: Stand, names: dict[str, str], *, currency: str) -> LimitOut:
    what, unit = stand.what, unit_of(stand.what, currency=currency)
    model = None if stand.model_id is None else names.get(stand.model_id)
    shown: dict[str, Any] = {
        name: text_of_amount(getattr(stand, name), what=what)
        for name in ("amount", "burst", "used", "leased", "available")
    }
    return LimitOut(
        allowance_id=stand.allowance_id,
        says=_says(stand, unit=unit, model=model, amount=shown["amount"]),
        scope_kind=stand.scope_kind,
        scope_id=stand.scope_id,
        scope_name=stand.scope_name,
        what=what,
        window=stand.window,
        model_id=stand.model_id,
        model=model,
        unit=unit,
        source=SourceOut(
            kind=stand.source_kind, id=stand.source_id, name=stand.source_name, until=stand.until
        ),
        period_start=stand.period_start,
        resets_at=stand.resets_at,
        peak=_peak(stand.peak, what=what),
        refused=RefusedOut(count=stand.refused, since=stand.refused_since, last=stand.refused_last),
        **shown,
    )


def _peak(peak: Peak | None, *, what: str) -> PeakOut | None:
    if peak is None:
        return None
    return PeakOut(amount=text_of_amount(peak.amount, what=what) or "0", at=peak.at)


_PER = {"minute": " per minute", "day": " per day", "week": " per week", "month": " per month"}


def _says(stand: Stand, *, unit: str, model: str | None, amount: str | None) -> str:
    """The limit in one sentence."""
    whose = f"{'this' if stand.scope_kind != 'tenant' else 'the'} {stand.scope_kind}"
    most = f"no limit of {unit}" if amount is None else f"{amount} {unit}"
    of_model = "" if model is None else f" of {model}"
    if stand.source_kind == "wallet":
        return f"{whose}: {most} in all, from its wallet"
    source = "override" if stand.source_kind == "override" else "plan"
    return f"{whose}: {most}{_PER.get(stand.window, '')}{of_model}, from {source} {stand.source_name}"
