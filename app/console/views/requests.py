"""The request log, and one request explained."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from app.console.page import Page
from app.core.ids import is_id
from app.identity.errors import not_found
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from app.insights.explain import find_explanation
from app.insights.requests import REFUSED, RequestFilter
from app.insights.requests import list_requests as find_requests
from billing.metering.model import Outcome

_PAGE_SIZE = 50
_OUTCOMES = (*(outcome.value for outcome in Outcome), REFUSED)


async def list_requests(page: Page) -> Response:
    """The newest requests, with filters and the cursor in the address."""
    page.actor.require(Scope.REQUESTS_READ)
    asked = page.request.query_params
    outcome = asked.get("outcome") if asked.get("outcome") in _OUTCOMES else None
    model = (asked.get("model") or "").strip()[:200] or None
    before = asked.get("before") if is_id(asked.get("before", ""), "req_") else None
    only = RequestFilter(tenant_id=page.member.tenant_id, model=model, outcome=outcome)
    rows = await find_requests(page.connection, only, before=before, limit=_PAGE_SIZE + 1)
    shown = rows[:_PAGE_SIZE]
    filters = {name: value for name, value in {"outcome": outcome, "model": model}.items() if value}
    older = urlencode({**filters, "before": shown[-1].id}) if len(rows) > _PAGE_SIZE else None
    return page.render(
        "requests",
        rows=shown,
        outcomes=_OUTCOMES,
        outcome=outcome,
        model=model,
        older=older,
        filtered=bool(filters or before),
        zone=await zone_of(page),
    )


async def show_request(page: Page) -> Response:
    """One request: facts, then a section for each step. Raises Rejected (404) if nothing is known of it."""
    page.actor.require(Scope.REQUESTS_READ)
    request_id = str(page.request.path_params["request_id"])
    known = await find_explanation(page.connection, request_id, within=page.member.tenant_id)
    if known is None:
        not_found("request (it may still run, or is about to be posted)", request_id)
    facts = {name: value for name, value in known.items() if not _is_section(value)}
    return page.render("request", request_id=request_id, facts=facts, known=known)


async def zone_of(page: Page) -> str:
    """The zone in which a visitor's times are shown: the tenant's; UTC for staff, who see several."""
    if page.member.tenant_id is None:
        return "UTC"
    return (await get_tenant(page.connection, page.member.tenant_id, within=page.member.tenant_id)).timezone


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(row, dict) for row in value)
    )
