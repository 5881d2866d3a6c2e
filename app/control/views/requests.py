"""`/requests`: what became of each request, and one explained."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query

from app.control.call import Call, Reads
from app.control.reach import tenant_within
from app.control.schemas import Moment, Out, Page, PagingQuery
from app.control.views.routes import router
from app.core.errors import Rejected, RejectReason
from app.core.money import format_picos
from app.identity.model import Scope
from app.insights import explain, requests
from app.insights.requests import RequestFilter, RequestRow

api = router("usage")
_Id = Annotated[str | None, Query(max_length=200)]
_Reader = Annotated[Call, Depends(Reads(Scope.REQUESTS_READ))]


class TokensOut(Out):
    input: int
    input_cached: int
    input_cache_write: int
    output: int


class RequestOut(Out):
    """One request; a refused one has a reason and no usage."""

    request_id: str
    admitted_at: datetime
    tenant_id: str
    project_id: str
    key_id: str
    model: str | None
    endpoint: str
    outcome: str
    status: int
    reason: str | None
    streamed: bool | None
    backend_id: str | None
    usage_source: str | None
    usage: TokensOut | None
    cost: str | None
    currency: str | None
    ttft_ms: int | None
    duration_ms: int | None


@api.get("/requests", summary="List requests, newest first; refused ones too")
async def list_requests(
    paging: PagingQuery,
    call: _Reader,
    *,
    tenant_id: _Id = None,
    project_id: _Id = None,
    key_id: _Id = None,
    model: _Id = None,
    outcome: Annotated[str | None, Query(max_length=40, description="Of metering, or `refused`.")] = None,
    start: Annotated[Moment | None, Query(alias="from")] = None,
    end: Annotated[Moment | None, Query(alias="to")] = None,
) -> Page[RequestOut]:
    only = RequestFilter(
        tenant_id=tenant_within(call, tenant_id),
        project_id=project_id,
        key_id=key_id,
        model=model,
        outcome=outcome,
        start=start,
        end=end,
    )
    rows = await requests.list_requests(call.connection, only, before=paging.after, limit=paging.fetch)
    return paging.page(rows, _request)


@api.get("/requests/{request_id}", summary="Explain a request: limits, hold, decision, tokens, price, ledger")
async def explain_request(request_id: str, call: _Reader) -> dict[str, Any]:
    found = await explain.find_explanation(call.connection, request_id, within=call.within)
    if found is None:
        raise Rejected(
            RejectReason.NOT_FOUND,
            f"There is no settled or refused request {request_id[:100]!r} within your reach.",
            status=404,
            id=request_id[:100],
            hint="One in progress, or not posted yet, appears within seconds of its end; "
            "one without a known key is not kept.",
        )
    return found


def _request(row: RequestRow) -> RequestOut:
    facts = {name: value for name, value in vars(row).items() if name not in ("id", "at", "usage", "cost")}
    return RequestOut(
        **facts,
        request_id=row.id,
        admitted_at=row.at,
        usage=TokensOut(**row.usage) if row.usage else None,
        cost=None if row.cost is None else format_picos(row.cost),
    )
