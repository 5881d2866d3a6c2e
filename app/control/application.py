"""The control plane as an ASGI app: API, console beside it, the usage endpoints that finance scripts know."""

from __future__ import annotations

from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from app.control import errors
from app.control.edge import Edge
from app.control.guard import ControlMetrics, Guard
from app.control.views import (
    alert_endpoints,
    alerts,
    backends,
    catalog,
    corrections,
    dry_run,
    keys,
    limit_overrides,
    limits,
    members,
    metering_policy,
    organization,
    parked,
    plans,
    prices,
    reconciliation,
    requests,
    tasks,
    tenants,
    usage,
    usage_events,
    wallets,
)
from app.core.clock import Clock, SystemClock

_DESCRIPTION = """
Everything that people, scripts and the console do with Steelyard. Money is a decimal string beside its
`currency`; prices are decimal strings per million tokens. Lists are pages: pass `next` as `after`.
Writes are audited, and repeatable with an `Idempotency-Key`; those that move money demand one.
"""
_ROOMS = (
    tenants,
    keys,
    catalog,
    backends,
    prices,
    wallets,
    plans,
    limits,
    limit_overrides,
    dry_run,
    tasks,
    usage,
    usage_events,
    metering_policy,
    requests,
    corrections,
    organization,
    alerts,
    alert_endpoints,
    reconciliation,
    parked,
    members,
)
_TAGS = [
    {"name": "tenants", "description": "Who pays, and the projects in which keys live."},
    {"name": "keys", "description": "Credentials of projects for the data plane."},
    {"name": "catalogue", "description": "Models and their deployments."},
    {"name": "backends", "description": "Engines and their addresses."},
    {"name": "prices", "description": "Price books and their dated versions."},
    {"name": "wallets", "description": "Prepaid balances, and the grants that fill them."},
    {"name": "limits", "description": "Plans, who has which, overrides, and what holds for whom."},
    {"name": "tasks", "description": "Pieces of work: one bill and perhaps one budget for many requests."},
    {"name": "corrections", "description": "What was given back or charged for single requests."},
    {"name": "usage", "description": "Tokens, cost, and each request explained."},
    {"name": "alerts", "description": "Who is told when a limit is nearly used, where, and how that went."},
    {"name": "reconciliation", "description": "Whether all books, and the engines, tell the same."},
    {"name": "settling", "description": "What the settler set aside, and what becomes of it."},
    {"name": "members", "description": "People, their access tokens, and what they did."},
]


def create_app(
    engine: AsyncEngine,
    *,
    clock: Clock | None = None,
    console: ASGIApp | None = None,
    metrics: ControlMetrics | None = None,
) -> Guard:
    """The whole control plane on a database. `console` is mounted at `/console`, and `/` leads there."""
    metrics = metrics or ControlMetrics()
    app = FastAPI(
        title="Steelyard control API",
        version="1",
        description=_DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
    )
    app.state.edge = Edge(engine, clock or SystemClock())
    errors.install(app)
    for room in _ROOMS:
        app.include_router(room.api)
    app.add_route("/metering", metering_policy.show_page)
    _add_health(app, engine)
    if console is not None:
        app.mount("/console", console)
        app.add_route("/", _to_console)
    return Guard(app, metrics=metrics)


async def _to_console(request: Request) -> Response:
    return RedirectResponse("/console/", status_code=307)


def _add_health(app: FastAPI, engine: AsyncEngine) -> None:
    async def health(request: Request) -> Response:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        return JSONResponse({"status": "ok"})

    app.add_route("/health", health)
