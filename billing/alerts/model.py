"""What an alert is made of. Amounts are whole numbers of what the allowance counts (picos for money)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from app.core.ids import AlertDeliveryId, AlertEndpointId, AlertId, AlertRuleId, AllowanceId, TenantId

DEFAULT_PERCENTS = (50, 80, 100)
"""Of a tenant without a rule of its own."""
COUNTED = frozenset({"picos", "tokens", "input_tokens", "output_tokens", "requests"})
WINDOWS = frozenset({"balance", "day", "week", "month"})
"""Of what there are alerts: what is spent for good, or in a period. Rates and what is running come and go."""
SCOPES = frozenset({"tenant", "project", "key", "task"})


class MarkKind(StrEnum):
    """`percent`: so many hundredths of the limit are used. `remaining`: less than so much is left."""

    PERCENT = "percent"
    REMAINING = "remaining"


class Mark(msgspec.Struct, frozen=True, order=True):
    """A threshold."""

    kind: MarkKind
    value: int


class Standing(msgspec.Struct, frozen=True):
    """An allowance as alerts see it.

    outstanding: lent to gateway processes, in use or free there; it counts as used, so an alert is never late
    because of a lease.   ended: the limit holds no more.
    """

    allowance_id: AllowanceId
    tenant_id: TenantId
    scope_kind: str
    scope_id: str
    what: str
    window_kind: str
    limit: int
    spent: int
    outstanding: int
    ended: bool = False

    @property
    def used(self) -> int:
        return self.spent + self.outstanding

    @property
    def is_wallet(self) -> bool:
        return (self.scope_kind, self.what, self.window_kind) == ("tenant", "picos", "balance")


class Rule(msgspec.Struct, frozen=True):
    """At which thresholds a tenant hears of the allowances that it fits; None fits all.

    remaining: of a wallet only.   No threshold at all: silence.
    """

    id: AlertRuleId
    tenant_id: TenantId
    scope_kind: str | None
    scope_id: str | None
    what: str | None
    window_kind: str | None
    percents: tuple[int, ...]
    remaining: int | None
    created_by: str
    created_at: datetime


class Endpoint(msgspec.Struct, frozen=True):
    """Where alerts go.   address: a URL or a mailbox."""

    id: AlertEndpointId
    tenant_id: TenantId
    kind: str
    name: str
    address: str
    status: str
    disabled_because: str | None
    created_by: str
    created_at: datetime


class Alert(msgspec.Struct, frozen=True):
    """A threshold that was reached, with the numbers of that moment.   currency: of picos."""

    id: AlertId
    tenant_id: TenantId
    allowance_id: AllowanceId
    kind: MarkKind
    threshold: int
    scope_kind: str
    scope_id: str
    scope_name: str | None
    model_id: str | None
    what: str
    window_kind: str
    period_start: datetime | None
    period_end: datetime | None
    currency: str | None
    limit_amount: int
    spent: int
    outstanding: int
    at: datetime
    rearmed_at: datetime | None = None

    @property
    def used(self) -> int:
        return self.spent + self.outstanding


class Delivery(msgspec.Struct, frozen=True):
    """The way of one alert to one endpoint.   alert_id: None is a test.   last_status: of the receiver."""

    id: AlertDeliveryId
    tenant_id: TenantId
    endpoint_id: AlertEndpointId
    alert_id: AlertId | None
    status: str
    attempts: int
    next_at: datetime
    last_status: int | None
    last_error: str | None
    created_at: datetime
    ended_at: datetime | None


class Attempt(msgspec.Struct, frozen=True):
    """One delivery on its way: a worker has it until its time is over.   secret: signs a webhook."""

    delivery: Delivery
    kind: str
    address: str
    alert: Alert | None
    secret: bytes | None

    def __repr__(self) -> str:
        return f"Attempt({self.delivery.id})"


class Outcome(msgspec.Struct, frozen=True):
    """How an attempt went.   error: None if it was taken.   gone: the receiver wants no more."""

    status: int | None = None
    error: str | None = None
    gone: bool = False
