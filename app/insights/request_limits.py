"""The limits that one request ran under, and what it held and used of each; plain JSON values.

What the journal settled (wallet, budgets, requests at once) is in the event. Rates and ceilings leave nothing
there: those that were in force when it was admitted are shown, with what the request used by their count.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.money import format_picos
from billing.metering.model import Meter, Usage
from billing.metering.uses import used_of
from billing.quota.tables import allowance

_SHOWN_FACTS = ("scope", "window", "unit", "model_id", "available", "needed", "currency", "resets_at")


async def limits_of(connection: AsyncConnection, event: Any) -> list[dict[str, Any]]:
    """One entry for each limit of a posted event, those that it held of first."""
    held = {each["allowance_id"]: each for each in event["holds"]}
    rows = (await connection.execute(_limits_in_force(event, list(held)))).mappings().all()
    shown = [_held(row, held[row["id"]]) for row in rows if row["id"] in held]
    return shown + [_read(row, event) for row in rows if row["id"] not in held]


def refused_limit(row: Any) -> dict[str, Any]:
    """What a recorded refusal says of the limit that it was for."""
    facts = row["facts"] or {}
    shown = {name: facts[name] for name in _SHOWN_FACTS if name in facts}
    return shown if row["allowance_id"] is None else {**shown, "allowance_id": row["allowance_id"]}


def _limits_in_force(event: Any, held: list[str]) -> Any:
    own = allowance.c
    read = (
        own.tenant_id == event["tenant_id"],
        own.scope_id.in_((event["tenant_id"], event["project_id"], event["key_id"])),
        own.window_kind.in_(("minute", "request")),
        or_(own.model_id.is_(None), own.model_id == event["model_id"]),
        own.created_at <= event["admitted_at"],
        or_(own.ended_at.is_(None), own.ended_at > event["admitted_at"]),
    )
    in_force = select(own.id).where(*read)
    return select(allowance).where(or_(own.id.in_(held), own.id.in_(in_force))).order_by(own.id)


def _held(row: Any, held: Any) -> dict[str, Any]:
    show = format_picos if row["what"] == "picos" else str
    return {
        **_named(row),
        "held": show(int(held["held"])),
        "used": show(int(held["used"])),
        "limit_now": show(row["limit_amount"]),
        "spent_now": show(row["spent"]),
    }


def _read(row: Any, event: Any) -> dict[str, Any]:
    usage = Usage(**{meter.value: event[meter.value] for meter in Meter})
    each = -(-usage.output // max(1, event["choices"] * event["prompts"]))
    match row["what"]:
        case "max_output":
            used = each
        case "max_context":
            used = usage.total - usage.output + each
        case what:
            used = used_of(what, usage, cost_picos=0)
    return {
        **_named(row),
        "held": None,
        "used": str(used),
        "limit_now": str(row["limit_amount"]),
        "spent_now": None,
    }


def _named(row: Any) -> dict[str, Any]:
    period = row["period_start"]
    return {
        "allowance_id": row["id"],
        "scope": row["scope_kind"],
        "scope_id": row["scope_id"],
        "model_id": row["model_id"],
        "what": "money" if row["what"] == "picos" else row["what"],
        "window": row["window_kind"],
        "period_start": None if period is None else str(period.isoformat().replace("+00:00", "Z")),
    }
