"""One request explained: its limits and hold, why it went where, what it used, what that cost and why.

Plain JSON values in the order in which things happened. Amounts are exact decimal strings; a line of
the charge reads `tokens × price / 1 M = amount`, and the lines add up to the total.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import from_ms
from app.core.money import format_picos, format_price
from app.insights.entries import list_transaction_entries
from app.insights.remedies import remedy_for
from app.insights.request_limits import limits_of, refused_limit
from app.insights.requests import REFUSED, usage_of
from billing.journal.tables import parked_record, refusal, usage_event
from billing.ledger.tables import usage_correction
from billing.metering.model import Meter

Explanation = dict[str, Any]


async def find_explanation(
    connection: AsyncConnection, request_id: str, *, within: str | None
) -> Explanation | None:
    """What is known of a request within reach, or None: running, not yet posted, or no request at all."""
    query = select(usage_event).where(usage_event.c.request_id == request_id)
    event = (await connection.execute(query)).mappings().one_or_none()
    if event is not None:
        return await _settled(connection, event) if within in (None, event["tenant_id"]) else None
    query = select(refusal).where(refusal.c.request_id == request_id)
    refused = (await connection.execute(query)).mappings().one_or_none()
    if refused is not None:
        return _refused(refused) if within in (None, refused["tenant_id"]) else None
    return await _find_parked(connection, request_id) if within is None else None


async def _settled(connection: AsyncConnection, event: Any) -> Explanation:
    return {
        **_identity(event, at=event["admitted_at"]),
        "task_id": event["task_id"],
        "streamed": event["streamed"],
        "outcome": event["outcome"],
        "status": event["status"],
        "error_code": event["error_code"],
        "finish_reason": event["finish_reason"],
        "settled_at": _moment(event["settled_at"]),
        "posted_at": _moment(event["posted_at"]),
        "ttft_ms": event["ttft_ms"],
        "duration_ms": event["duration_ms"],
        "bytes_relayed": event["bytes_relayed"],
        "flags": list(event["flags"]),
        "cost": format_picos(event["cost"]),
        "currency": event["currency"],
        "limits": await limits_of(connection, event),
        "hold": _hold(event),
        "decision": _decision(event),
        "attempts": [_attempt(each) for each in event["attempts"]],
        "usage": _usage(event),
        "charge": _charge(event),
        "corrections": await _corrections(connection, event),
        "ledger": await _ledger(connection, event),
    }


async def _corrections(connection: AsyncConnection, event: Any) -> Explanation:
    """What was given back or charged after the event, which stands, and what the request costs in all."""
    known = usage_correction.c
    query = select(usage_correction).where(known.request_id == event["request_id"]).order_by(known.id)
    rows = (await connection.execute(query)).mappings().all()
    net = event["cost"] - sum(row["amount"] for row in rows)
    return {
        "net_cost": format_picos(net),
        "currency": event["currency"],
        "rows": [
            {
                "at": _moment(row["at"]),
                "amount": format_picos(row["amount"]),
                "tokens": {meter.value: row[f"billed_{meter.value}"] for meter in Meter},
                "reason": row["reason"],
                "id": row["id"],
                "transaction_id": row["transaction_id"],
            }
            for row in rows
        ],
    }


def _refused(row: Any) -> Explanation:
    wait_ms = row["retry_after_ms"]
    return {
        **_identity(row, at=row["at"]),
        "outcome": REFUSED,
        "status": row["status"],
        "refusal": {
            "reason": row["reason"],
            "message": row["message"],
            "limit": row["limit_value"],
            "observed": row["observed_value"],
            **refused_limit(row),
            "retry_after_s": None if wait_ms is None else wait_ms / 1000,
            "remedy": remedy_for(row["reason"]),
            "cost": "Nothing: a refused request is never charged.",
        },
    }


async def _find_parked(connection: AsyncConnection, request_id: str) -> Explanation | None:
    """A settlement that was set aside; for staff, who have to look at it."""
    query = select(parked_record).where(parked_record.c.request_id == request_id)
    row = (await connection.execute(query.order_by(parked_record.c.id.desc()).limit(1))).mappings().first()
    if row is None:
        return None
    return {
        "request_id": request_id,
        "outcome": "parked",
        "parked": {
            "reason": row["reason"],
            "parked_at": _moment(row["parked_at"]),
            "incarnation_id": row["incarnation_id"],
            "file_offset": row["file_offset"],
            "note": "It could not be posted as it is. Its hold stays counted until an operator resolves it.",
        },
    }


def _identity(row: Any, *, at: Any) -> Explanation:
    return {
        "request_id": row["request_id"],
        "admitted_at": _moment(at),
        "tenant_id": row["tenant_id"],
        "project_id": row["project_id"],
        "key_id": row["key_id"],
        "model": row["model_name"],
        "endpoint": row["endpoint"],
    }


def _hold(event: Any) -> Explanation:
    released = max(0, event["hold"] - event["cost"])
    return {
        "amount": format_picos(event["hold"]),
        "captured": format_picos(min(event["hold"], event["cost"])),
        "released": format_picos(released),
        "beyond_lease": format_picos(event["unleased"]),
        "currency": event["currency"],
    }


def _decision(event: Any) -> Explanation:
    tried = event["attempts"]
    last = tried[-1] if tried else {}
    scores = last.get("scores") or {}
    return {
        "backend_id": event["backend_id"],
        "deployment_id": event["deployment_id"],
        "attempts": len(tried),
        "predicted_wait_ms": _tenths(last.get("predicted_wait_ms")),
        "candidates": len(scores),
        "reason": _reason(tried, scores=scores),
        "scores": [
            {
                "backend_id": name,
                "predicted_wait_ms": _tenths(score),
                "chosen": name == last.get("backend_id"),
            }
            for name, score in sorted(scores.items(), key=lambda item: (item[1], item[0]))
        ],
    }


def _reason(tried: list[Any], *, scores: dict[str, Any]) -> str:
    if not tried:
        return "No attempt is on record: the gateway ended before it could write one."
    failed = len(tried) - 1
    again = f" after {failed} failed attempt{'s' if failed > 1 else ''}" if failed else ""
    wait = tried[-1].get("predicted_wait_ms")
    if wait is None:
        return f"Chosen{again}; no prediction is on record."
    return f"Least predicted wait ({wait:.1f} ms) of {max(1, len(scores))} that could take it{again}."


def _attempt(attempt: Any) -> Explanation:
    """An attempt in the order in which it happened, without its scores, which the decision shows."""
    started_ms = attempt.get("started_ms")
    return {
        "backend_id": attempt["backend_id"],
        "started_at": None if started_ms is None else _moment(from_ms(started_ms)),
        "predicted_wait_ms": _tenths(attempt.get("predicted_wait_ms")),
        "first_byte_ms": _tenths(attempt.get("first_byte_ms")),
        "duration_ms": _tenths(attempt.get("duration_ms")),
        "status": attempt.get("status"),
        "outcome": attempt["outcome"],
        "error_code": attempt.get("error_code"),
    }


def _tenths(milliseconds: float | None) -> float | None:
    """A measured time without digits that nobody measured."""
    return None if milliseconds is None else round(milliseconds, 1)


def _usage(event: Any) -> Explanation:
    classes = usage_of(event)
    return {
        "source": event["usage_source"],
        **classes,
        "total": sum(classes.values()),
        "reasoning": event["reasoning"],
        "unknown_bound": event["unknown_bound"],
    }


def _charge(event: Any) -> Explanation:
    lines = [_line(event, meter) for meter in Meter if event[f"billed_{meter.value}"]]
    total = sum(line.pop("picos") for line in lines)
    assert total == event["cost"], "a posted event's cost is that of its lines"
    return {
        "price_version_id": event["price_version_id"],
        "currency": event["currency"],
        "lines": lines,
        "total": format_picos(total),
    }


def _line(event: Any, meter: Meter) -> Explanation:
    tokens, rate = int(event[f"billed_{meter.value}"]), int(event["rates"][meter.value])
    price, amount = format_price(rate), format_picos(tokens * rate)
    return {
        "meter": meter.value,
        "tokens": tokens,
        "price": price,
        "amount": amount,
        "arithmetic": f"{tokens} × {price} / 1000000 = {amount}",
        "picos": tokens * rate,
    }


async def _ledger(connection: AsyncConnection, event: Any) -> Explanation:
    if event["transaction_id"] is None:
        return {"transaction_id": None, "note": "It cost nothing, so nothing was posted."}
    entries = await list_transaction_entries(connection, event["transaction_id"])
    return {
        "transaction_id": event["transaction_id"],
        "posted_at": _moment(entries[0].at) if entries else None,
        "note": "One transaction for all requests of the tenant that were settled together.",
        "of_this_request": format_picos(event["cost"]),
        "entries": [
            {"account": each.account.value, "amount": format_picos(each.amount), "currency": each.currency}
            for each in entries
        ],
    }


def _moment(at: Any) -> str:
    return str(at.isoformat().replace("+00:00", "Z"))
