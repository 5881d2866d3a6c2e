"""`/limits/dry-run`: a limit tried on the requests of the past before it is set."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import Depends
from pydantic import Field

from app.control.call import Call, Writes
from app.control.limit_shapes import LimitIn, amount_of, subject_of, text_of_amount, unit_of
from app.control.place import find_place
from app.control.schemas import Identifier, Moment, Out
from app.control.views.routes import router
from app.identity.model import Scope
from app.insights import dry_run
from app.insights.dry_run import Found, Tried
from billing.quota.terms import Scope as ScopeKind
from billing.quota.terms import check_limit

api = router("limits")
_WEEK = timedelta(days=7)


class DryRunIn(LimitIn):
    """A limit, for whom, and the past to try it on."""

    tenant_id: Identifier | None = Field(None, description="Null: the caller's own.")
    project_id: Identifier | None = Field(None, description="For this project.")
    key_id: Identifier | None = Field(None, description="For this key.")
    start: Moment | None = Field(None, alias="from", description="Included; null: seven days before `to`.")
    end: Moment | None = Field(None, alias="to", description="Not included; null: now.")


class RefusedRequest(Out):
    """A request that the limit would have refused.   needed: of it, when it was admitted."""

    request_id: str
    at: datetime
    needed: str


class DayOut(Out):
    day: date
    requests: int
    refused: int


class DryRunOut(Out):
    """What the limit would have done in [start, end), alone, and how far that can be known."""

    says: str = Field(examples=["would have refused 312 of 10482 requests"])
    start: datetime = Field(description="For a budget the start of the period in which `from` lies.")
    end: datetime
    timezone: str
    requests: int
    refused: int
    first: list[RefusedRequest] = Field(description="The first ones refused.")
    days: list[DayOut]
    refused_then: int = Field(description="Requests that limits refused at that time: they are not in it.")
    notes: list[str]


@api.post("/limits/dry-run", summary="Try a limit on the past: how many requests it would have refused")
async def try_limit(body: DryRunIn, call: Annotated[Call, Depends(Writes(Scope.LIMITS_READ))]) -> DryRunOut:
    """Changes nothing. Exact for this one limit by what is on record; the notes say what the record can't."""
    asked = {"tenant_id": body.tenant_id, "project_id": body.project_id, "key_id": body.key_id}
    owner, place = await find_place(call, asked, model=body.model)
    kind: ScopeKind = "key" if body.key_id else "project" if body.project_id else "tenant"
    subject = subject_of(body, kind, model_id=place.model_id)
    amount = amount_of(body.amount, what=body.what) or 0
    burst = amount_of(body.burst, what=body.what, param="burst")
    check_limit(subject, amount=amount, burst=burst)
    end = body.end or call.now
    found = await dry_run.dry_run(
        call.connection,
        Tried(place, subject, amount, burst),
        start=body.start or end - _WEEK,
        end=end,
        zone=ZoneInfo(owner.timezone),
    )
    return _shown(found, body, unit=unit_of(body.what, currency=owner.currency), timezone=owner.timezone)


def _shown(found: Found, body: DryRunIn, *, unit: str, timezone: str) -> DryRunOut:
    return DryRunOut(
        says=f"would have refused {found.refused} of {found.requests} requests",
        start=found.start,
        end=found.end,
        timezone=timezone,
        requests=found.requests,
        refused=found.refused,
        first=[
            RefusedRequest(
                request_id=each.request_id,
                at=dry_run.moment_of(each),
                needed=text_of_amount(each.needed, what=body.what) or "0",
            )
            for each in found.first
        ],
        days=[DayOut.model_validate(each) for each in found.days],
        refused_then=found.refused_then,
        notes=list(_notes(found, body, unit=unit)),
    )


def _notes(found: Found, body: DryRunIn, *, unit: str) -> list[str]:
    """What the numbers leave out."""
    notes = []
    if found.refused_then:
        notes.append(
            f"Limits of that time refused {found.refused_then} more requests: what those would have used"
            " isn't known, and isn't counted."
        )
    if found.refused:
        notes.append("A client that is refused may try again later; that isn't counted.")
    if body.what == "max_output":
        notes.append("Requests are weighed by the output that they produced; what they asked for isn't kept.")
    elif "tokens" in body.what or body.what == "max_context":
        notes.append(
            f"Requests are weighed by the {unit} that they used. A gateway holds the most that one may use,"
            " and gives the rest back when it ends: close to the limit it refuses some more."
        )
    if body.window == "minute":
        notes.append("The rate begins with a full bucket.")
    if body.window == "running":
        notes.append("Requests that ran already when the range begins aren't counted.")
    return notes
