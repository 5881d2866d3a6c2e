"""Chains made by hand: lines as they are sealed and handed out, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from billing.chain.check import Check, Scope
from billing.chain.lines import correction_line, event_line, published, withheld_line
from billing.chain.link import Head, canonical, digest_of, extend
from billing.chain.walk import Flaw
from billing.chain.wire import KeptHead
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.rating.model import Rates, cost

TENANT = "ten_" + "1" * 32
RATES = Rates(540_000, 180_000, 540_000, 2_160_000)
USAGE = Usage(10, 5, 0, 7, 3)
WHOLE = Scope()
UTC_ZONE = ZoneInfo("UTC")
_METERS = ("input", "input_cached", "input_cache_write", "output")
_START = datetime(2026, 11, 30, 22, tzinfo=UTC)


def event_row(
    number: int,
    usage: Usage = USAGE,
    *,
    outcome: Outcome = Outcome.COMPLETED,
    source: UsageSource = UsageSource.ENGINE,
    at: datetime = _START,
    **facts: Any,
) -> dict[str, Any]:
    """A row of `usage_event` that follows the policy."""
    due = billed(outcome, source, usage)
    unknown = source is UsageSource.UNKNOWN
    return {
        "request_id": f"req_{number:032x}",
        "tenant_id": TENANT,
        "project_id": "prj_" + "2" * 32,
        "key_id": "key_" + "3" * 32,
        "model_id": "mdl_" + "4" * 32,
        "model_name": "small",
        "endpoint": "chat.completions",
        "streamed": True,
        "choices": 1,
        "prompts": 1,
        "outcome": outcome.value,
        "status": 200,
        "finish_reason": "stop",
        "usage_source": source.value,
        "unknown_bound": {**dict.fromkeys(_METERS, 0), "input": 100, "output": 50} if unknown else None,
        "price_version_id": "pbv_" + "5" * 32,
        "currency": "USD",
        "admitted_at": at,
        "settled_at": at + timedelta(seconds=1),
        "posted_at": at + timedelta(seconds=2),
        "flags": [],
        "reasoning": usage.reasoning,
        **{name: getattr(usage, name) for name in _METERS},
        **{f"billed_{name}": getattr(due, name) for name in _METERS},
        "rates": {name: getattr(RATES, name) for name in _METERS},
        "cost": cost(due, RATES),
        **facts,
    }


def correction_of(row: dict[str, Any], *, tokens: int, at: datetime) -> dict[str, Any]:
    """The line of a correction that gives back some output tokens."""
    own = {
        "id": row["request_id"].replace("req_", "crr_"),
        "at": at,
        "reason": "the engine counted twice",
        **{f"billed_{name}": 0 for name in _METERS},
        "billed_output": -tokens,
        "amount": tokens * RATES.output,
    }
    return correction_line(own, row)


def seal(lines: Iterable[tuple[dict[str, Any], date]]) -> list[bytes]:
    """Lines, each with the day of its posting, as they are handed out."""
    head: Head | None = None
    texts = []
    for line, day in lines:
        link = extend(head, tenant_id=TENANT, posted=day, today=day, digest=digest_of(line))
        head = Head(link.day, link.sequence, link.hash)
        texts.append(published(line, link))
    return texts


def chain(amount: int = 12, *, step: timedelta = timedelta(minutes=30)) -> list[bytes]:
    """A chain of events over some days, by default over two."""
    rows = [event_row(number, at=_START + number * step) for number in range(amount)]
    return seal((event_line(row), row["posted_at"].date()) for row in rows)


def withheld(text: bytes) -> bytes:
    """A line as it is shown to somebody who did not ask for it."""
    line = msgspec.json.decode(text)
    place = line.pop("chain")
    return canonical({**withheld_line(TENANT, digest_of(line)), "chain": place})


def head_of(text: bytes) -> KeptHead:
    """The head that a line is."""
    plain = msgspec.json.decode(text)
    place = plain["chain"]
    return KeptHead(plain["tenant_id"], place["day"], place["sequence"], place["hash"])


def checked(texts: Sequence[bytes], scope: Scope = WHOLE, **expected: int) -> Check:
    """The check after all lines."""
    check = Check(scope, zone=UTC_ZONE)
    for text in texts:
        check.take(text)
    check.finish(expected=expected)
    return check


def flaws(texts: Sequence[bytes], scope: Scope = WHOLE) -> set[Flaw]:
    return set(checked(texts, scope).flaws)
