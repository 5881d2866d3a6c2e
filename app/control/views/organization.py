"""`/v1/organization/usage/completions` and `/costs`: pages of buckets, in the shape finance scripts know.

Money is a decimal string, not a float; a result of `/costs` also names its price version and who
counted. `input_tokens` includes cached and cache-written ones, as in that API.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads
from app.control.reach import groups, reach
from app.control.schemas import Out
from app.control.views.routes import router
from app.core.clock import from_ms
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from app.insights import usage
from app.insights.buckets import Width, ceiling, edges, spans
from app.insights.usage import UsageFilter, UsageQuery, UsageRow

api = router("usage", prefix="/v1/organization")
_UTC = ZoneInfo("UTC")
_MOST = {Width.MINUTE: 1440, Width.HOUR: 168, Width.DAY: 180}
_USUAL = {Width.MINUTE: 60, Width.HOUR: 24, Width.DAY: 7}
_GROUPS = {"project_id": "project", "api_key_id": "key", "model": "model", "line_item": "model"}
_LAST_SECOND = 253_370_764_799
"""Of the year 9998: a page's buckets beyond it are still moments."""
_Reader = Annotated[Call, Depends(Reads(Scope.USAGE_READ))]


class UsageResult(Out):
    """Tokens of one group in one bucket; what isn't grouped by is null."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int = Field(description="All input, cached included.")
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_audio_tokens: int = 0
    output_tokens: int
    output_audio_tokens: int = 0
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: None = None
    service_tier: None = None


class Amount(Out):
    value: str = Field(examples=["0.00066636"], description="Exact.")
    currency: str = Field(examples=["USD"])


class CostResult(Out):
    """Cost of one group in one bucket, at one price version, counted by one source."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None = Field(None, description="The model, when grouped by it.")
    project_id: str | None = None
    api_key_id: str | None = None
    price_version: str
    usage_source: str


class UsageBucket(Out):
    object: Literal["bucket"] = "bucket"
    start_time: int = Field(description="Unix seconds, included.")
    end_time: int = Field(description="Unix seconds, not included.")
    results: list[UsageResult]


class CostBucket(Out):
    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[CostResult]


class UsagePage(Out):
    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class CostPage(Out):
    object: Literal["page"] = "page"
    data: list[CostBucket]
    has_more: bool
    next_page: str | None


class Asked:
    """The parameters of both endpoints; lists come as `x=a&x=b` or `x[]=a&x[]=b`."""

    def __init__(
        self,
        *,
        start_time: Annotated[int, Query(ge=0, le=_LAST_SECOND, description="Unix seconds, included.")],
        end_time: Annotated[int | None, Query(ge=0, le=_LAST_SECOND, description="Not included.")] = None,
        bucket_width: Literal["1m", "1h", "1d"] = "1d",
        limit: Annotated[int | None, Query(ge=1, description="Most buckets of a page.")] = None,
        page: Annotated[
            str | None, Query(max_length=40, description="`next_page` of the one before.")
        ] = None,
        group_by: Annotated[list[str] | None, Query(max_length=10)] = None,
        group_by_list: Annotated[list[str] | None, Query(alias="group_by[]", max_length=10)] = None,
        project_ids: Annotated[list[str] | None, Query(max_length=100)] = None,
        project_ids_list: Annotated[list[str] | None, Query(alias="project_ids[]", max_length=100)] = None,
        api_key_ids: Annotated[list[str] | None, Query(max_length=100)] = None,
        api_key_ids_list: Annotated[list[str] | None, Query(alias="api_key_ids[]", max_length=100)] = None,
        models: Annotated[list[str] | None, Query(max_length=100)] = None,
        models_list: Annotated[list[str] | None, Query(alias="models[]", max_length=100)] = None,
    ) -> None:
        self.start = from_ms(start_time * 1000)
        self.end = None if end_time is None else from_ms(end_time * 1000)
        self.width = Width(bucket_width)
        self.limit = min(limit or _USUAL[self.width], _MOST[self.width])
        self.page = page
        self.group_by = [*(group_by or []), *(group_by_list or [])]
        self.project_ids = (*(project_ids or []), *(project_ids_list or []))
        self.key_ids = (*(api_key_ids or []), *(api_key_ids_list or []))
        self.models = [*(models or []), *(models_list or [])]

    def cut(self, now: datetime) -> tuple[list[datetime], str | None]:
        """The edges of this page's buckets, and the cursor of the next page."""
        first = self.start if self.page is None else _read_page(self.page)
        end = self.end or ceiling(now, width=self.width, zone=_UTC)
        if first < self.start or first >= end:
            invalid("The range is empty.", param="start_time" if self.page is None else "page")
        steps = {Width.MINUTE: timedelta(minutes=1), Width.HOUR: timedelta(hours=1)}
        furthest = first + (self.limit + 1) * steps.get(self.width, timedelta(days=1))
        cut = edges(first, min(end, furthest), width=self.width, zone=_UTC)
        kept = cut[: self.limit + 1]
        more = kept[-1] < end
        return kept, f"page_{int(kept[-1].timestamp())}" if more else None


_Asked = Annotated[Asked, Depends()]


@api.get("/usage/completions", summary="Tokens by bucket, in the shape of OpenAI's usage API")
async def show_completions(asked: _Asked, call: _Reader) -> UsagePage:
    cut, following = asked.cut(call.now)
    rows = await usage.summarize_whole(call.connection, await _query(asked, call, cut=cut))
    data = [
        UsageBucket(start_time=start, end_time=end, results=_merged(found))
        for start, end, found in _by_bucket(cut, rows)
    ]
    return UsagePage(data=data, has_more=following is not None, next_page=following)


@api.get("/costs", summary="Cost by bucket, in the shape of OpenAI's costs API")
async def show_costs(asked: _Asked, call: _Reader) -> CostPage:
    cut, following = asked.cut(call.now)
    query = await _query(asked, call, cut=cut, always=("price_version", "usage_source"))
    rows = await usage.summarize_whole(call.connection, query)
    data = [
        CostBucket(start_time=start, end_time=end, results=[_cost(row) for row in found])
        for start, end, found in _by_bucket(cut, rows)
    ]
    return CostPage(data=data, has_more=following is not None, next_page=following)


async def _query(
    asked: Asked, call: Call, *, cut: list[datetime], always: tuple[str, ...] = ()
) -> UsageQuery:
    unknown = [name for name in asked.group_by if name not in _GROUPS]
    if unknown:
        invalid(f"Can't group by {unknown[0][:40]!r}; there are {', '.join(_GROUPS)}.", param="group_by")
    only = await reach(
        call,
        UsageFilter(project_ids=asked.project_ids, key_ids=asked.key_ids),
        models_asked=asked.models,
    )
    return UsageQuery(cut, groups([*(_GROUPS[name] for name in asked.group_by), *always]), only)


def _by_bucket(cut: list[datetime], rows: list[UsageRow]) -> list[tuple[int, int, list[UsageRow]]]:
    found: dict[datetime, list[UsageRow]] = {}
    for row in rows:
        found.setdefault(row.start, []).append(row)
    return [(int(start.timestamp()), int(end.timestamp()), found.get(start, [])) for start, end in spans(cut)]


def _merged(rows: list[UsageRow]) -> list[UsageResult]:
    """One result a group: tokens have no currency, so rows that differ by it alone are added up."""
    groups_of: dict[tuple[tuple[str, str], ...], list[UsageRow]] = {}
    for row in rows:
        groups_of.setdefault(tuple(sorted(row.group.items())), []).append(row)
    return [_usage(members) for members in groups_of.values()]


def _usage(rows: list[UsageRow]) -> UsageResult:
    tokens = {name: sum(row.tokens[name] for row in rows) for name in usage.TOKENS}
    group = rows[0].group
    return UsageResult(
        input_tokens=tokens["input"] + tokens["input_cached"] + tokens["input_cache_write"],
        input_cached_tokens=tokens["input_cached"],
        input_cache_write_tokens=tokens["input_cache_write"],
        output_tokens=tokens["output"],
        num_model_requests=sum(row.requests for row in rows),
        project_id=group.get("project_id"),
        api_key_id=group.get("key_id"),
        model=rows[0].model,
    )


def _cost(row: UsageRow) -> CostResult:
    return CostResult(
        amount=Amount(value=format_picos(row.cost), currency=row.currency),
        line_item=row.model,
        project_id=row.group.get("project_id"),
        api_key_id=row.group.get("key_id"),
        price_version=row.group["price_version_id"],
        usage_source=row.group["usage_source"],
    )


def _read_page(page: str) -> datetime:
    digits = page.removeprefix("page_")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 13
    if digits == page or not is_number or int(digits) > _LAST_SECOND:
        invalid("A page is the `next_page` of the page before.", param="page")
    return from_ms(int(digits) * 1000)
