"""Plans, assignments, overrides and effective limits as values, and which limits can be."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from app.core.errors import Rejected, RejectReason
from app.core.ids import AllowanceId, ModelId, OverrideId, PlanAssignmentId, PlanId, PriceBookId, TenantId

Scope = Literal["tenant", "project", "key"]
Window = Literal["day", "week", "month", "minute", "running", "request"]
What = Literal[
    "picos", "tokens", "input_tokens", "output_tokens", "requests", "concurrent", "max_output", "max_context"
]

CALENDAR: tuple[Window, ...] = ("day", "week", "month")
MOST = 10**15
"""The most of anything but money that a limit can say: more than can be used, so no limit at all."""

_COUNTED: dict[Window, frozenset[What]] = {
    **dict.fromkeys(
        CALENDAR,
        frozenset[What](("picos", "tokens", "input_tokens", "output_tokens", "requests")),
    ),
    "minute": frozenset[What](("tokens", "input_tokens", "output_tokens", "requests")),
    "running": frozenset[What](("concurrent",)),
    "request": frozenset[What](("max_output", "max_context")),
}


class Subject(msgspec.Struct, frozen=True):
    """What is limited, for what: with a scope's id, one limit.   model_id None: all models together.

    what: `picos` are of the tenant's currency.
    """

    scope_kind: Scope
    what: What
    window: Window
    model_id: ModelId | None = None


class PlanLimit(msgspec.Struct, frozen=True):
    """One limit of a plan, for the tenant or for each of its projects or keys.

    amount: of a rate, per minute.   burst: of a rate, the most at once; None: as much as a minute's.
    """

    subject: Subject
    amount: int
    burst: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """A set of limits.   currency: of its amounts of money; None: it has none and fits every tenant."""

    id: PlanId
    name: str
    description: str
    currency: str | None
    price_book_id: PriceBookId | None
    created_at: datetime
    archived_at: datetime | None


class Assignment(msgspec.Struct, frozen=True):
    """A tenant has a plan in [effective_from, effective_to)."""

    id: PlanAssignmentId
    tenant_id: TenantId
    plan_id: PlanId
    effective_from: datetime
    effective_to: datetime | None
    created_by: str
    created_at: datetime


class Override(msgspec.Struct, frozen=True):
    """A limit of one scope that stands in a plan's place.   amount None: no limit.

    In force in [effective_from, expires_at), until it is revoked; the newest of several counts.
    """

    id: OverrideId
    tenant_id: TenantId
    scope_id: str
    subject: Subject
    amount: int | None
    burst: int | None
    effective_from: datetime
    expires_at: datetime | None
    reason: str
    created_by: str
    created_at: datetime
    revoked_at: datetime | None


class EffectiveLimit(msgspec.Struct, frozen=True):
    """A limit that holds now, where it comes from and how it stands.

    amount None: an override says that there is no limit; then there is no allowance and nothing is counted.
    [period_start, period_end): of calendar windows.   source_kind, source_id, source_name: `plan` and its
    name, or `override` and its reason.   until: when what it comes from ends.   used, outstanding, available:
    of a rate, of what its bucket can hold; a ceiling on one request uses nothing.
    """

    allowance_id: AllowanceId | None
    scope_id: str
    subject: Subject
    amount: int | None
    burst: int | None
    period_start: datetime | None
    period_end: datetime | None
    source_kind: Literal["plan", "override"]
    source_id: str
    source_name: str
    until: datetime | None
    used: int
    outstanding: int
    available: int


def check_limit(subject: Subject, *, amount: int | None, burst: int | None) -> None:
    """Nothing if such a limit can be; raises Rejected (`parameter_invalid`) that says why not."""
    if subject.scope_kind not in get_args(Scope):
        _invalid("A limit is for a tenant, a project or a key.", "scope_kind")
    counted = _COUNTED.get(subject.window)
    if counted is None:
        _invalid(f"A window is one of {', '.join(get_args(Window))}.", "window")
    elif subject.what not in counted:
        _invalid(f"In the window {subject.window!r} these are counted: {', '.join(sorted(counted))}.", "what")
    if burst is not None and (subject.window != "minute" or amount is None):
        _invalid("Only a limit per minute has a burst.", "burst")
    most = 10**38 - 1 if subject.what == "picos" else MOST
    for name, value in (("amount", amount), ("burst", burst)):
        if value is not None and not 0 <= value <= most:
            _invalid(f"A limit is from 0 to {most}; for no limit leave it out.", name)


def not_found(what: str, an_id: str) -> Rejected:
    """The answer to a caller who names a plan, assignment or override that isn't there."""
    return Rejected(RejectReason.NOT_FOUND, f"There is no {what} {an_id[:100]!r}.", status=404)


def _invalid(message: str, param: str) -> Any:
    raise Rejected(RejectReason.PARAMETER_INVALID, message, status=400, param=param)
