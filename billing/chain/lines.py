"""The lines that a tenant can read and check: one for each usage event and each correction of one. Pure.

A line is history as its row is: the form of a version never changes, or what was sealed could no
longer be verified. Another form is another version.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from app.core.money import format_picos, format_price
from billing.chain.link import Link, canonical
from billing.metering.model import Meter

EVENT = "usage.event"
CORRECTION = "usage.correction"
WITHHELD = "usage.withheld"
VERSION = 1
_AS_THEY_ARE = (
    "request_id",
    "tenant_id",
    "project_id",
    "key_id",
    "model_id",
    "endpoint",
    "streamed",
    "choices",
    "prompts",
    "outcome",
    "status",
    "finish_reason",
    "usage_source",
    "unknown_bound",
    "price_version_id",
    "currency",
)
MOMENTS = ("admitted_at", "settled_at", "posted_at")
_OF_THE_EVENT = (
    "request_id",
    "tenant_id",
    "project_id",
    "key_id",
    "model_id",
    "price_version_id",
    "currency",
)
_METERS = tuple(meter.value for meter in Meter)
COLUMNS = (
    *_AS_THEY_ARE,
    *MOMENTS,
    *_METERS,
    *(f"billed_{name}" for name in _METERS),
    "model_name",
    "flags",
    "reasoning",
    "rates",
    "cost",
)
"""The columns of `usage_event` that lines are made of."""


def event_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a row of `usage_event`, without its place in the chain. No prompt is ever in it."""
    return {
        "object": EVENT,
        "version": VERSION,
        **{name: row[name] for name in _AS_THEY_ARE},
        **{name: moment(row[name]) for name in MOMENTS},
        "model": row["model_name"],
        "flags": list(row["flags"]),
        "usage": {name: int(row[name]) for name in (*_METERS, "reasoning")},
        "billed": {name: int(row[f"billed_{name}"]) for name in _METERS},
        "prices": _prices_of(row),
        "cost": format_picos(row["cost"]),
        "cost_picos": str(row["cost"]),
    }


def correction_line(row: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a row of `usage_correction` and of the event that it corrects, which stays as it is.

    amount: positive goes back to the tenant.   billed_change: billed tokens more, at the event's prices.
    """
    return {
        "object": CORRECTION,
        "version": VERSION,
        "correction_id": row["id"],
        **{name: event[name] for name in _OF_THE_EVENT},
        "model": event["model_name"],
        "posted_at": moment(row["at"]),
        "reason": row["reason"],
        "billed_change": {name: int(row[f"billed_{name}"]) for name in _METERS},
        "prices": _prices_of(event),
        "amount": format_picos(row["amount"]),
        "amount_picos": str(row["amount"]),
    }


def withheld_line(tenant_id: str, digest: bytes) -> dict[str, Any]:
    """What stands for a line that the reader did not ask for, so that the chain can be followed past it."""
    return {"object": WITHHELD, "version": VERSION, "tenant_id": tenant_id, "line": digest.hex()}


def published(line: Mapping[str, Any], link: Link) -> bytes:
    """A line as it is handed out: canonical bytes, with its place in the chain."""
    place = {
        "day": link.day,
        "sequence": link.sequence,
        "previous": link.previous.hex(),
        "hash": link.hash.hex(),
    }
    return canonical({**line, "chain": place})


def moment(at: datetime) -> str:
    """A moment in UTC to the microsecond, always of the same length (RFC 3339)."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _prices_of(event: Mapping[str, Any]) -> dict[str, str]:
    return dict(_prices(tuple(event["rates"][name] for name in _METERS)))


@lru_cache(maxsize=1024)
def _prices(rates: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Micros per million tokens as decimal strings of units per million, by class."""
    return tuple((name, format_price(rate)) for name, rate in zip(_METERS, rates, strict=True))
