"""The records of a journal: `admitted → progress* → settled`, and `refused` beside it.

A journal is one file per gateway incarnation, in the order of the moves. The settler joins a
`Settled` to its `Admitted`; a request whose process died is settled from its last progress row.
Records hold no cycles (`gc=False`): the collector would walk hundreds of thousands of them for nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.core.ids import (
    AllowanceId,
    BackendId,
    DeploymentId,
    IncarnationId,
    KeyId,
    ModelId,
    PriceVersionId,
    ProjectId,
    RequestId,
    TaskId,
    TenantId,
)
from billing.metering.model import Outcome, Usage, UsageSource
from billing.rating.model import Rates

RECORD_VERSION = 1


class Opened(msgspec.Struct, frozen=True, gc=False, tag="opened"):
    """First record of a journal."""

    version: int
    incarnation_id: IncarnationId
    at_ms: int
    host: str


class Held(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one allowance gave to a request: `amount` (n) when admitted.

    what: it counts (`billing.metering.uses`); money in records that were written before it was told.
    """

    allowance_id: AllowanceId
    amount: int
    what: str = "picos"


class Used(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What became of a hold: `held` (n) and `used` (x) of `what`; x > n is an overrun."""

    allowance_id: AllowanceId
    held: int
    used: int
    what: str = "picos"

    @property
    def taken(self) -> int:
        """What it takes of the process' lease; the rest of the hold was free again when it was recorded."""
        return min(self.held, self.used)


class Admitted(msgspec.Struct, frozen=True, gc=False, tag="admitted"):
    """A request that passed admission: who, what, at which pinned prices, with which holds.

    holds: of whatever is settled by this record; rates are not.   choices: answers asked for (`n`).
    prompts: prompts in the one request. Both are 1 in records that were written before they were.
    task_id: the piece of work that it belongs to.
    """

    request_id: RequestId
    at_ms: int
    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    model_id: ModelId
    model_name: str
    deployment_id: DeploymentId
    endpoint: str
    streamed: bool
    currency: str
    price_version_id: PriceVersionId
    rates: Rates
    input_bound: int
    output_bound: int
    holds: tuple[Held, ...]
    choices: int = 1
    prompts: int = 1
    task_id: TaskId | None = None


class Reading(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where a running stream stands: cumulative usage as the engine reported it, or None."""

    request_id: RequestId
    backend_id: BackendId
    usage: Usage | None
    bytes_relayed: int


class Progress(msgspec.Struct, frozen=True, gc=False, tag="progress"):
    """One row, every two seconds, for all running streams of the process."""

    at_ms: int
    readings: tuple[Reading, ...]


class Settled(msgspec.Struct, frozen=True, gc=False, tag="settled"):
    """The end of a request.

    usage: what is known to be consumed.   billed: the part that the published policy bills.
    unknown_bound: upper bound of what nobody reported (source `unknown`), else None.
    cost_picos: rate(billed) at the pinned rates.   flags: e.g. `cached_unknown`, `cached_above_input`.
    attempts: as `scheduler.dispatch.Attempt`, plain values, for `explain`.
    """

    request_id: RequestId
    at_ms: int
    outcome: Outcome
    usage_source: UsageSource
    usage: Usage
    billed: Usage
    unknown_bound: Usage | None
    cost_picos: int
    used: tuple[Used, ...]
    backend_id: BackendId | None
    status: int
    error_code: str | None
    finish_reason: str | None
    ttft_ms: int | None
    duration_ms: int
    bytes_relayed: int
    flags: tuple[str, ...]
    attempts: tuple[dict[str, Any], ...]


class Refused(msgspec.Struct, frozen=True, gc=False, tag="refused"):
    """A request of a known key that was not admitted; costs nothing, explains itself.

    allowance_id: the limit that it lacked.   facts: of that limit, as texts: scope, window, unit, needed, …
    """

    request_id: RequestId
    at_ms: int
    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    model_name: str | None
    endpoint: str
    reason: str
    message: str
    status: int
    limit: str | None
    observed: str | None
    retry_after_s: float | None
    allowance_id: AllowanceId | None = None
    facts: dict[str, str] | None = None


Record = Opened | Admitted | Progress | Settled | Refused

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record, strict=False).decode
"""Not strict: an amount beyond 64 bits is written as its decimal digits."""


def encode(record: Record) -> bytes:
    """The bytes of a record; `decode` gives back an equal one, however large its amounts are."""
    try:
        return _encode(record)
    except OverflowError:
        return _encode(_spelled_out(msgspec.to_builtins(record)))


def _spelled_out(value: Any) -> Any:
    match value:
        case dict():
            return {key: _spelled_out(item) for key, item in value.items()}
        case list() | tuple():
            return [_spelled_out(item) for item in value]
        case int() if value.bit_length() >= 64:
            return str(value)
    return value
