"""The rows that a journal's entries become. Pure."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from app.core.clock import from_ms
from app.core.ids import IncarnationId, TransactionId
from billing.journal.join import Charge, Entry, Orphan, Refusal, Unreadable
from billing.journal.tables import usage_event
from billing.metering.model import Meter, Usage
from billing.rating.model import Rates

EVENT_COLUMNS = tuple(column.name for column in usage_event.columns)
_METERS = tuple(meter.value for meter in Meter)
_json = msgspec.json.Encoder().encode


def event_row(
    charge: Charge,
    *,
    incarnation_id: IncarnationId,
    transaction_id: TransactionId | None,
    purse_use: tuple[int, int],
    posted_at: datetime,
) -> tuple[Any, ...]:
    """The usage event of a charge, in the order of `EVENT_COLUMNS`; JSON as text, for COPY."""
    admitted, settled = charge.admitted, charge.settled
    hold, overrun = purse_use
    values = {
        "request_id": admitted.request_id,
        "tenant_id": admitted.tenant_id,
        "project_id": admitted.project_id,
        "key_id": admitted.key_id,
        "model_id": admitted.model_id,
        "model_name": admitted.model_name,
        "deployment_id": admitted.deployment_id,
        "backend_id": settled.backend_id,
        "incarnation_id": incarnation_id,
        "endpoint": admitted.endpoint,
        "streamed": admitted.streamed,
        "choices": admitted.choices,
        "prompts": admitted.prompts,
        "admitted_at": from_ms(admitted.at_ms),
        "settled_at": from_ms(settled.at_ms),
        "outcome": settled.outcome.value,
        "usage_source": settled.usage_source.value,
        **_classes(settled.usage),
        "reasoning": settled.usage.reasoning,
        **_billed(settled.billed),
        "unknown_bound": settled.unknown_bound and _json_text(_classes(settled.unknown_bound)),
        "cost": settled.cost_picos,
        "currency": admitted.currency,
        "price_version_id": admitted.price_version_id,
        "rates": _rates_text(admitted.rates),
        "hold": hold,
        "unleased": overrun,
        "status": settled.status,
        "error_code": without_nul(settled.error_code),
        "finish_reason": without_nul(settled.finish_reason),
        "ttft_ms": settled.ttft_ms,
        "duration_ms": settled.duration_ms,
        "bytes_relayed": settled.bytes_relayed,
        "flags": list(settled.flags),
        "attempts": _json_text(settled.attempts),
        "holds": _json_text(
            [
                {"allowance_id": used.allowance_id, "held": str(used.held), "used": str(used.used)}
                for used in settled.used
            ]
        ),
        "payload_hash": charge.payload_hash,
        "transaction_id": transaction_id,
        "posted_at": posted_at,
    }
    return tuple(values[name] for name in EVENT_COLUMNS)


def refusal_row(refusal: Refusal, *, incarnation_id: IncarnationId) -> dict[str, Any]:
    """The row of a refused request. Its texts may be the caller's: NULs are taken out."""
    refused = refusal.refused
    retry_after_ms = None if refused.retry_after_s is None else round(refused.retry_after_s * 1000)
    values = {
        "request_id": refused.request_id,
        "tenant_id": refused.tenant_id,
        "project_id": refused.project_id,
        "key_id": refused.key_id,
        "incarnation_id": incarnation_id,
        "at": from_ms(refused.at_ms),
        "model_name": refused.model_name,
        "endpoint": refused.endpoint,
        "reason": refused.reason,
        "message": refused.message,
        "status": refused.status,
        "limit_value": refused.limit,
        "observed_value": refused.observed,
        "retry_after_ms": retry_after_ms,
    }
    return {name: without_nul(value) for name, value in values.items()}


def parked_row(
    entry: Entry | Orphan, *, incarnation_id: IncarnationId, reason: str, parked_at: datetime
) -> dict[str, Any]:
    """The row of an entry that can't be posted, with its bytes and what it still takes of the leases."""
    request_id: str | None = None
    holds: list[tuple[str, str]] = []
    match entry:
        case Charge():
            request_id = entry.admitted.request_id
            taken = {(used.allowance_id, used.held): used.taken for used in entry.settled.used}
            holds = [
                (held.allowance_id, str(taken.get((held.allowance_id, held.amount), held.amount)))
                for held in entry.admitted.holds
            ]
        case Orphan():
            request_id = entry.settled.request_id
            holds = [(used.allowance_id, str(used.taken)) for used in entry.settled.used]
        case Refusal():
            request_id = entry.refused.request_id
        case Unreadable():
            pass
    return {
        "incarnation_id": incarnation_id,
        "file_offset": entry.start,
        "request_id": without_nul(request_id),
        "reason": without_nul(reason),
        "admitted": entry.admitted_bytes if isinstance(entry, Charge) else None,
        "record": entry.settled_bytes if isinstance(entry, Charge) else entry.payload,
        "holds": holds,
        "parked_at": parked_at,
    }


def without_nul(value: Any) -> Any:
    """`value` with U+0000, which PostgreSQL's text can't hold, shown as U+FFFD, at any depth."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list() | tuple():
            return [without_nul(item) for item in value]
        case dict():
            return {without_nul(key): without_nul(item) for key, item in value.items()}
    return value


def _json_text(value: Any) -> str:
    text = _json(value).decode()
    return _json(without_nul(value)).decode() if "\\u0000" in text else text


@lru_cache(maxsize=1024)
def _rates_text(rates: Rates) -> str:
    return _json_text({name: getattr(rates, name) for name in _METERS})


def _classes(usage: Usage) -> dict[str, int]:
    return {name: getattr(usage, name) for name in _METERS}


def _billed(usage: Usage) -> dict[str, int]:
    return {f"billed_{name}": getattr(usage, name) for name in _METERS}
