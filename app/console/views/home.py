"""The first page: today's usage, the newest requests, the wallets, and a first request to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from starlette.responses import Response

from app.catalog.models import list_models
from app.console.page import Page
from app.console.views.wallets import wallets_of
from app.identity.model import Scope
from app.identity.tenants import list_tenants
from app.insights.buckets import Width, edges
from app.insights.requests import RequestFilter, list_requests
from app.insights.usage import UsageFilter, UsageQuery, UsageRow, summarize
from billing.metering.model import Meter

_MOST_TENANTS = 20
_NEWEST = 10


@dataclass(frozen=True)
class Day:
    """The day that is shown, and the zone in which it was cut. Half-open."""

    start: datetime
    end: datetime
    zone: str


@dataclass(frozen=True)
class Total:
    """The exact sum of all rows of a currency."""

    currency: str
    requests: int
    tokens: dict[str, int]
    cost: int


async def show_home(page: Page) -> Response:
    page.actor.require(Scope.USAGE_READ)
    page.actor.require(Scope.WALLETS_READ)
    tenants = await list_tenants(
        page.connection, within=page.member.tenant_id, after=None, limit=_MOST_TENANTS
    )
    day = _today(page.site.now(), zones={tenant.timezone for tenant in tenants})
    only = UsageFilter(tenant_ids=(page.member.tenant_id,) if page.member.tenant_id else ())
    cut = edges(day.start, day.end, width=Width.NONE, zone=ZoneInfo(day.zone))
    rows = await summarize(page.connection, UsageQuery(cut, ("model",), only))
    newest = RequestFilter(tenant_id=page.member.tenant_id)
    models = await list_models(page.connection, drafts=False, after=None, limit=1)
    return page.render(
        "home",
        day=day,
        meters=[meter.value for meter in Meter],
        rows=rows,
        totals=_totals(rows),
        requests=await list_requests(page.connection, newest, before=None, limit=_NEWEST),
        wallets=await wallets_of(page, tenants),
        gateway_url=_gateway_url(page),
        model=models[0].name if models else None,
    )


def _today(now: datetime, *, zones: set[str]) -> Day:
    """Today in the tenants' zone if they share one, else in UTC."""
    name = zones.pop() if len(zones) == 1 else "UTC"
    start = now.astimezone(ZoneInfo(name)).replace(hour=0, minute=0, second=0, microsecond=0)
    return Day(start, start + timedelta(days=1), name)  # local midnight again: wall time, not 24 hours


def _totals(rows: Sequence[UsageRow]) -> list[Total]:
    totals = []
    for currency in sorted({row.currency for row in rows}):
        own = [row for row in rows if row.currency == currency]
        tokens = {meter.value: sum(row.tokens[meter.value] for row in own) for meter in Meter}
        requests, cost = sum(row.requests for row in own), sum(row.cost for row in own)
        totals.append(Total(currency, requests, tokens, cost))
    return totals


def _gateway_url(page: Page) -> str:
    """Where clients reach the gateway: its own address, or, if that is "all", the name we were called by."""
    settings = page.site.settings
    everywhere = settings.gateway_host in ("0.0.0.0", "::", "")
    host = (page.request.url.hostname or "localhost") if everywhere else settings.gateway_host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.gateway_port}"
