"""What was consumed and what it cost, by any grouping and any buckets; the parts are the whole.

The sums come from the 15-minute roll-ups where the buckets are whole quarters, else from the events
and their corrections themselves. Both are written in one transaction, so they say the same. An event
belongs to the bucket of its admission, a correction to that of its posting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    FromClause,
    Integer,
    Numeric,
    Select,
    bindparam,
    cast,
    func,
    literal,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.models import names_of
from app.core.database import PicosType
from app.identity.errors import invalid
from app.insights.buckets import is_whole, spans
from billing.journal.tables import usage_event, usage_rollup
from billing.ledger.corrections import SOURCE
from billing.ledger.tables import usage_correction

GROUPS = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model_id",
    "price_version": "price_version_id",
    "usage_source": "usage_source",
}
MOST_ROWS = 50_000
"""Of an answer that isn't cut into pages of rows."""
TOKENS = ("input", "input_cached", "input_cache_write", "output", "reasoning")
BILLED = ("billed_input", "billed_input_cached", "billed_input_cache_write", "billed_output")


@dataclass(frozen=True)
class UsageFilter:
    """Which usage is asked for. An empty tuple: no restriction by that."""

    tenant_ids: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    model_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class UsageQuery:
    """A question.   cut: edges of the buckets (`buckets.edges`).   group_by: names of `GROUPS`."""

    cut: list[datetime]
    group_by: tuple[str, ...] = ()
    only: UsageFilter = field(default_factory=UsageFilter)


@dataclass(frozen=True)
class UsageRow:
    """The sum of one group in one bucket and currency.   cost: picos.   group: column → id.

    unknown_requests: how many of the requests nobody reported the usage of; their tokens aren't in it.
    """

    start: datetime
    end: datetime
    group: dict[str, str]
    model: str | None
    currency: str
    requests: int
    unknown_requests: int
    tokens: dict[str, int]
    cost: int
    cursor: tuple[str, ...]


async def summarize_whole(
    connection: AsyncConnection, query: UsageQuery, *, most: int = MOST_ROWS
) -> list[UsageRow]:
    """All rows at once. Raises Rejected (400) if they are more than `most`."""
    rows = await summarize(connection, query, limit=most + 1)
    if len(rows) > most:
        invalid(f"These are more than {most} rows: ask for fewer buckets or groups.", param="limit")
    return rows


async def summarize(
    connection: AsyncConnection,
    query: UsageQuery,
    *,
    after: Sequence[str] | None = None,
    limit: int | None = None,
) -> list[UsageRow]:
    """Rows by bucket, group and currency; empty buckets have none.

    after: the `cursor` of the last row of the page before.
    """
    keys = [GROUPS[name] for name in query.group_by] + ["currency"]
    statement = _statement(query, keys)
    if after is not None:
        statement = _after(statement, keys, cursor=after)
    result = (await connection.execute(statement.limit(limit))).mappings().all()
    models = {row["model_id"] for row in result} if "model_id" in keys else set()
    names = await names_of(connection, models) if models else {}
    periods = spans(query.cut)
    return [_row(row, keys=keys, names=names, period=periods[row["bucket"] - 1]) for row in result]


def _source(query: UsageQuery) -> tuple[FromClause, ColumnElement[datetime]]:
    """Rows to sum up, each with `requests`, and the moment of each."""
    if is_whole(query.cut):
        return usage_rollup, usage_rollup.c.bucket
    start, end = query.cut[0], query.cut[-1]
    known = usage_event.c
    names = ("currency", *GROUPS.values(), *TOKENS, *BILLED, "cost")
    events = select(known.admitted_at.label("at"), literal(1).label("requests"), *(known[n] for n in names))
    lines = union_all(
        events.where(known.admitted_at >= start, known.admitted_at < end),
        _corrections().where(usage_correction.c.at >= start, usage_correction.c.at < end),
    ).subquery()
    return lines, lines.c.at


def _corrections() -> Select[Any]:
    """Corrections as the events' own lines: no requests, no measured tokens, and what they changed."""
    made, event = usage_correction.c, usage_event.c
    owner = [event[name] for name in GROUPS.values() if name != "usage_source"]
    return select(
        made.at,
        literal(0).label("requests"),
        made.currency,
        *owner,
        literal(SOURCE).label("usage_source"),
        *(literal(0).label(name) for name in TOKENS),
        *(made[name] for name in BILLED),
        (-made.amount).label("cost"),
    ).join(usage_event, event.request_id == made.request_id)


def _bucket_of(query: UsageQuery, moment: ColumnElement[datetime]) -> ColumnElement[int]:
    marks = bindparam("cut", query.cut[:-1], type_=ARRAY(DateTime(timezone=True)))
    return func.width_bucket(moment, marks, type_=Integer)


def _statement(query: UsageQuery, keys: Sequence[str]) -> Select[Any]:
    table, moment = _source(query)
    bucket = _bucket_of(query, moment).label("bucket")
    requests = table.c.requests
    is_unknown = table.c.usage_source == "unknown"
    sums = [_whole(func.sum(table.c[name]), name) for name in TOKENS + BILLED]
    unknown = func.coalesce(func.sum(requests).filter(is_unknown), 0)
    statement = select(
        bucket,
        *(table.c[key] for key in keys),
        _whole(func.sum(requests), "requests"),
        _whole(unknown, "unknown_requests"),
        *sums,
        cast(func.sum(table.c.cost), PicosType).label("cost"),
    ).where(moment >= query.cut[0], moment < query.cut[-1])
    for name, wanted in _restrictions(query.only):
        statement = statement.where(table.c[name].in_(wanted))
    order = [bucket, *(table.c[key] for key in keys)]
    return statement.group_by(*order).order_by(*order)


def _restrictions(only: UsageFilter) -> list[tuple[str, tuple[str, ...]]]:
    named = [
        ("tenant_id", only.tenant_ids),
        ("project_id", only.project_ids),
        ("key_id", only.key_ids),
        ("model_id", only.model_ids),
    ]
    return [(name, wanted) for name, wanted in named if wanted]


def _after(statement: Select[Any], keys: Sequence[str], *, cursor: Sequence[str]) -> Select[Any]:
    sums = statement.subquery()
    position = (int(cursor[0]), *cursor[1:])
    here = tuple_(sums.c.bucket, *(sums.c[key] for key in keys))
    there = tuple_(*(literal(each) for each in position))
    return select(sums).where(here > there).order_by(sums.c.bucket, *(sums.c[key] for key in keys))


def _whole(total: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    """A sum as a number without a fraction: bigint sums are numeric in PostgreSQL and may outgrow bigint."""
    return cast(total, Numeric(38, 0)).label(name)


def _row(
    row: Any, *, keys: Sequence[str], names: dict[str, str], period: tuple[datetime, datetime]
) -> UsageRow:
    group = {key: row[key] for key in keys if key != "currency"}
    return UsageRow(
        start=period[0],
        end=period[1],
        group=group,
        model=names.get(group.get("model_id", "")),
        currency=row["currency"],
        requests=int(row["requests"]),
        unknown_requests=int(row["unknown_requests"]),
        tokens={name: int(row[name]) for name in TOKENS + BILLED},
        cost=int(row["cost"]),
        cursor=(str(row["bucket"]), *(row[key] for key in keys)),
    )
