"""The limits that hold for a tenant, project or key: where each comes from and how it stands.

Besides what the authority counts: how many requests each limit refused, and the most that was used of what a
rate, a number of running requests or a ceiling limits within the last days, by the events of those days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import AllowanceId, ModelId, TenantId
from billing.quota import limits
from billing.quota.terms import CALENDAR, EffectiveLimit

LOOK_BACK = timedelta(days=7)
MOST_S = 5
"""Seconds that the events of those days may take to be looked through; else peaks are not known."""
_PEAKED = ("minute", "running", "request")
"""The windows of limits whose peaks tell something; of a budget, what is used does."""
_LONGEST_REQUEST = timedelta(hours=1)
_TIMED_OUT = "57014"

_WALLET = text("""
SELECT a.id, a.limit_amount, a.spent, w.id AS wallet_id, (
  SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) FROM lease l
  WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0) AS outstanding
FROM wallet w JOIN allowance a ON a.id = w.allowance_id WHERE w.tenant_id = :tenant
""")
_REFUSALS = text("""
SELECT r.allowance_id, count(*) AS amount, max(r.at) AS last
FROM unnest(CAST(:ids AS text[]), CAST(:since AS timestamptz[])) AS a(id, since)
JOIN refusal r ON r.allowance_id = a.id AND r.at >= a.since GROUP BY r.allowance_id
""")
_SCOPED = """tenant_id = :tenant AND (CAST(:project AS text) IS NULL OR project_id = :project)
  AND (CAST(:key AS text) IS NULL OR key_id = :key) AND (CAST(:model AS text) IS NULL OR model_id = :model)"""
_INPUT = "billed_input + billed_input_cached + billed_input_cache_write"
_MINUTES = text(f"""
WITH minute AS (
  SELECT date_trunc('minute', admitted_at) AS at, count(*)::numeric AS requests, sum({_INPUT}) AS input,
    sum(billed_output) AS output, max(billed_output)::numeric AS max_output,
    max({_INPUT} + billed_output)::numeric AS max_context
  FROM usage_event WHERE admitted_at >= :since AND admitted_at <= :at AND {_SCOPED} GROUP BY 1)
SELECT DISTINCT ON (v.what) v.what, v.amount, m.at FROM minute m CROSS JOIN LATERAL (VALUES
  ('requests', m.requests), ('input_tokens', m.input), ('output_tokens', m.output),
  ('tokens', m.input + m.output), ('max_output', m.max_output), ('max_context', m.max_context)
) AS v(what, amount) ORDER BY v.what, v.amount DESC, m.at
""")  # noqa: S608 - pieces of our own
_RUNNING = text(f"""
WITH event AS (
  SELECT admitted_at, settled_at FROM usage_event
  WHERE admitted_at >= :early AND admitted_at <= :at AND settled_at >= :since AND {_SCOPED}),
step AS (SELECT admitted_at AS at, 1 AS step FROM event UNION ALL SELECT settled_at, -1 FROM event)
SELECT 'concurrent' AS what, sum(step) OVER (ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS amount, at
FROM step ORDER BY amount DESC, at LIMIT 1
""")  # noqa: S608 - pieces of our own


class Place(msgspec.Struct, frozen=True):
    """Whose limits are asked for: a tenant, or one of its projects, or a key of that.

    names: of the scopes, by id.   model_id: only limits that a request for this model has; None: all.
    """

    tenant_id: TenantId
    names: dict[str, str]
    project_id: str | None = None
    key_id: str | None = None
    model_id: ModelId | None = None


class Peak(msgspec.Struct, frozen=True):
    """The most that was used within the days looked back on, and when that was first."""

    amount: int
    at: datetime


class Stand(msgspec.Struct, frozen=True):
    """A limit and how it stands. Amounts of money in picos.

    amount None: no limit, by an override.   source_kind: `plan`, `override` or `wallet`.   leased: lent to
    gateway processes, in use by running requests or free there.   resets_at: when nothing is used any more,
    if nothing else comes.   refused: requests since `refused_since`.   peak: None where it is not asked for,
    not known, or nothing was used.
    """

    allowance_id: AllowanceId | None
    scope_kind: str
    scope_id: str
    scope_name: str
    what: str
    window: str
    model_id: ModelId | None
    amount: int | None
    burst: int | None
    period_start: datetime | None
    source_kind: str
    source_id: str
    source_name: str
    until: datetime | None
    used: int
    leased: int
    available: int
    resets_at: datetime | None
    refused_since: datetime
    refused: int = 0
    refused_last: datetime | None = None
    peak: Peak | None = None


class Standing(msgspec.Struct, frozen=True):
    """All limits of a place at a moment.   peaks_known: False if there were too many events for that."""

    at: datetime
    since: datetime
    stands: list[Stand]
    peaks_known: bool


async def standing(connection: AsyncConnection, place: Place, *, most_s: int = MOST_S) -> Standing:
    """The limits that a request from this place has to keep to now, the wallet first.

    most_s: seconds that looking for peaks may take; then they are unknown.
    """
    at: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    since = at - LOOK_BACK
    scopes = frozenset(each for each in (place.tenant_id, place.project_id, place.key_id) if each is not None)
    found = [
        each
        for each in await limits.effective(connection, place.tenant_id, scope_ids=scopes, at=at)
        if place.model_id is None or each.subject.model_id in (None, place.model_id)
    ]
    stands = [_stand(each, place, at=at, since=since) for each in found]
    wallet = (await connection.execute(_WALLET, {"tenant": place.tenant_id})).mappings().one_or_none()
    if wallet is not None:
        stands.insert(0, _wallet(wallet, place, since=since))
    stands = await _with_refusals(connection, stands)
    peaks = await _find_peaks(connection, place, stands=stands, at=at, most_s=most_s)
    if peaks is None:
        return Standing(at, since, stands, False)
    return Standing(at, since, [_peaked(each, peaks) for each in stands], True)


def resets_at(limit: EffectiveLimit, *, at: datetime) -> datetime | None:
    """When what is used is there again: a period's end; of a rate, when its bucket is full. None: never."""
    if limit.subject.window in CALENDAR:
        return limit.period_end
    if limit.subject.window != "minute" or not limit.amount:
        return None
    return at + timedelta(microseconds=-(-limit.used * 60_000_000 // limit.amount))


def _stand(limit: EffectiveLimit, place: Place, *, at: datetime, since: datetime) -> Stand:
    subject = limit.subject
    return Stand(
        allowance_id=limit.allowance_id,
        scope_kind=subject.scope_kind,
        scope_id=limit.scope_id,
        scope_name=place.names.get(limit.scope_id, ""),
        what=subject.what,
        window=subject.window,
        model_id=subject.model_id,
        amount=limit.amount,
        burst=limit.burst,
        period_start=limit.period_start,
        source_kind=limit.source_kind,
        source_id=limit.source_id,
        source_name=limit.source_name,
        until=limit.until,
        used=limit.used,
        leased=limit.outstanding,
        available=limit.available,
        resets_at=resets_at(limit, at=at),
        refused_since=since if limit.period_start is None else limit.period_start,
    )


def _wallet(row: Any, place: Place, *, since: datetime) -> Stand:
    amount, spent, out = int(row["limit_amount"]), int(row["spent"]), int(row["outstanding"])
    return Stand(
        allowance_id=AllowanceId(row["id"]),
        scope_kind="tenant",
        scope_id=place.tenant_id,
        scope_name=place.names.get(place.tenant_id, ""),
        what="picos",
        window="balance",
        model_id=None,
        amount=amount,
        burst=None,
        period_start=None,
        source_kind="wallet",
        source_id=row["wallet_id"],
        source_name="what was granted, and credit",
        until=None,
        used=spent,
        leased=out,
        available=amount - spent - out,
        resets_at=None,
        refused_since=since,
    )


async def _with_refusals(connection: AsyncConnection, stands: Sequence[Stand]) -> list[Stand]:
    asked = [(each.allowance_id, each.refused_since) for each in stands if each.allowance_id]
    query = {"ids": [an_id for an_id, _ in asked], "since": [since for _, since in asked]}
    rows = (await connection.execute(_REFUSALS, query)).all()
    known = {row.allowance_id: row for row in rows}
    return [
        msgspec.structs.replace(each, refused=int(row.amount), refused_last=row.last)
        if (row := known.get(each.allowance_id)) is not None
        else each
        for each in stands
    ]


_Where = tuple[str, ModelId | None, bool]
"""Scope, model, and whether it is what runs at once that is counted."""


async def _find_peaks(
    connection: AsyncConnection, place: Place, *, stands: Iterable[Stand], at: datetime, most_s: int
) -> dict[tuple[str, ModelId | None, str], Peak] | None:
    """The peaks of what rates, numbers of running requests and ceilings limit; None: it takes too long."""
    asked = dict.fromkeys(_where(each) for each in stands if each.window in _PEAKED)
    found: dict[tuple[str, ModelId | None, str], Peak] = {}
    try:
        async with connection.begin_nested():
            await connection.execute(text(f"SET LOCAL statement_timeout = '{most_s}s'"))
            for where in asked:
                found |= await _peaks_at(connection, place, where=where, at=at)
            await connection.execute(text("SET LOCAL statement_timeout TO DEFAULT"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _TIMED_OUT:
            raise
        return None
    return found


async def _peaks_at(
    connection: AsyncConnection, place: Place, *, where: _Where, at: datetime
) -> dict[tuple[str, ModelId | None, str], Peak]:
    scope_id, model_id, is_running = where
    since = at - LOOK_BACK
    query = {
        "tenant": place.tenant_id,
        "project": place.project_id if scope_id != place.tenant_id else None,
        "key": place.key_id if scope_id == place.key_id else None,
        "model": model_id,
        "since": since,
        "at": at,
    }
    if is_running:
        query["early"] = since - _LONGEST_REQUEST
    rows = await connection.execute(_RUNNING if is_running else _MINUTES, query)
    return {(scope_id, model_id, row.what): Peak(int(row.amount), row.at) for row in rows}


def _where(stand: Stand) -> _Where:
    return stand.scope_id, stand.model_id, stand.window == "running"


def _peaked(each: Stand, peaks: dict[tuple[str, ModelId | None, str], Peak]) -> Stand:
    if each.window not in _PEAKED:
        return each
    return msgspec.structs.replace(each, peak=peaks.get((each.scope_id, each.model_id, each.what)))
