"""`/usage`: what was consumed and what it cost."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads
from app.control.cursor import read_cursor, write_cursor
from app.control.reach import groups, reach, tenant_within
from app.control.schemas import Moment, Out, Page, PagingQuery
from app.control.views.routes import router
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from app.insights import usage
from app.insights.buckets import Width, ceiling, edges
from app.insights.usage import UsageFilter, UsageQuery, UsageRow

api = router("usage")
_Id = Annotated[str | None, Query(max_length=200)]
_LISTED = ("tenant", "project", "key", "model", "price_version", "usage_source")
_Reader = Annotated[Call, Depends(Reads(Scope.USAGE_READ))]


class UsageOut(Out):
    """The sum of one group in one bucket [start, end) and currency; ids not grouped by are null.

    Token classes are disjoint: their sum is the whole. `billed_…` is the part that was charged.
    """

    start: datetime
    end: datetime
    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model_id: str | None = None
    model: str | None = None
    price_version_id: str | None = None
    usage_source: str | None = None
    currency: str
    requests: int
    unknown_requests: int = Field(description="Requests whose usage nobody reported: not in the tokens.")
    input: int
    input_cached: int
    input_cache_write: int
    output: int
    reasoning: int = Field(description="A subset of output.")
    billed_input: int
    billed_input_cached: int
    billed_input_cache_write: int
    billed_output: int
    cost: str = Field(examples=["0.00066636"])


class UsageAsked:
    """The parameters of `/usage`, read but not yet bound to the caller."""

    def __init__(
        self,
        *,
        start: Annotated[Moment | None, Query(alias="from", description="Included; null: today.")] = None,
        end: Annotated[Moment | None, Query(alias="to", description="Not included; null: now.")] = None,
        timezone: Annotated[
            str | None, Query(max_length=64, description="IANA; cuts days. Null: the tenant's, else UTC.")
        ] = None,
        bucket: Width = Width.NONE,
        group_by: Annotated[
            str, Query(max_length=100, description=f"Of {', '.join(_LISTED)}; several with commas.")
        ] = "model",
        tenant_id: _Id = None,
        project_id: _Id = None,
        key_id: _Id = None,
        model: Annotated[str | None, Query(max_length=200, description="Id or name.")] = None,
    ) -> None:
        self.start = start
        self.end = end
        self.timezone = timezone
        self.bucket = bucket
        self.group_by = group_by
        self.only = {"tenant_ids": tenant_id, "project_ids": project_id, "key_ids": key_id}
        self.model = model


@api.get("/usage", summary="Sum tokens and cost by bucket and group; the parts are the whole")
async def show_usage(
    asked: Annotated[UsageAsked, Depends()], paging: PagingQuery, call: _Reader
) -> Page[UsageOut]:
    query = await _query(asked, call)
    after = read_cursor(paging.after, fields=len(query.group_by) + 2)
    rows = await usage.summarize(call.connection, query, after=after, limit=paging.fetch)
    shown = rows[: paging.limit]
    more = len(rows) > paging.limit
    following = write_cursor(shown[-1].cursor) if more else None
    return Page(data=[_usage(row) for row in shown], has_more=more, next=following)


async def _query(asked: UsageAsked, call: Call) -> UsageQuery:
    tenant_id = tenant_within(call, asked.only["tenant_ids"])
    zone = await _zone(asked.timezone, call, tenant_id=tenant_id)
    end = asked.end or call.now
    if end >= call.now:
        end = ceiling(end, width=Width.QUARTER, zone=ZoneInfo("UTC"))
    start = asked.start or datetime.combine(call.now.astimezone(zone).date(), time(), zone)
    try:
        cut = edges(start, end, width=asked.bucket, zone=zone)
    except (ValueError, OverflowError) as error:
        invalid(f"The range can't be cut: {error}.", param="from")
    only = {name: () if value is None else (value,) for name, value in asked.only.items()}
    return UsageQuery(
        cut,
        groups(asked.group_by.split(",")),
        await reach(call, UsageFilter(**only), models_asked=[asked.model] if asked.model else []),
    )


async def _zone(name: str | None, call: Call, *, tenant_id: str | None) -> ZoneInfo:
    if name is None and tenant_id is not None:
        name = (await get_tenant(call.connection, tenant_id, within=call.within)).timezone
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        invalid("A timezone is an IANA name such as Europe/Berlin.", param="timezone")


def _usage(row: UsageRow) -> UsageOut:
    return UsageOut(
        start=row.start.astimezone(UTC),
        end=row.end.astimezone(UTC),
        **row.group,
        **row.tokens,
        model=row.model,
        currency=row.currency,
        requests=row.requests,
        unknown_requests=row.unknown_requests,
        cost=format_picos(row.cost),
    )
