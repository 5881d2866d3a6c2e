"""The console as an ASGI application, to be mounted under a path of the control process."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import uuid4

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.console.page import Site, load_templates, render, signed_in
from app.console.views.home import show_home
from app.console.views.login import show_login, submit_login, submit_logout
from app.console.views.reconciliation import show_reconciliation
from app.console.views.requests import list_requests, show_request
from app.console.views.wallets import list_wallets, show_wallet
from app.core.clock import Clock, SystemClock
from app.core.errors import DependencyError, RejectReason, SteelyardError
from app.core.settings import Settings
from app.identity.sessions import LoginAttempts

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_BUSY = ("40001", "40P01", "55P03", "57014")
"""SQLSTATE of a rival's lock, or of a statement that took too long."""
_log = logging.getLogger(__name__)


def create_console(engine: AsyncEngine, settings: Settings, *, clock: Clock | None = None) -> ASGIApp:
    """The console over a database. It reads through services, and writes only sessions."""
    application = Starlette(
        routes=[
            Route("/", signed_in(show_home)),
            Route("/login", show_login),
            Route("/login", submit_login, methods=["POST"]),
            Route("/logout", signed_in(submit_logout), methods=["POST"]),
            Route("/requests", signed_in(list_requests)),
            Route("/requests/{request_id}", signed_in(show_request)),
            Route("/reconciliation", signed_in(show_reconciliation)),
            Route("/wallets", signed_in(list_wallets)),
            Route("/wallets/{wallet_id}", signed_in(show_wallet)),
            Mount("/static", StaticFiles(directory=_STATIC), name="static"),
        ],
        exception_handlers={
            SteelyardError: _answer_error,
            HTTPException: _answer_http_error,
            DBAPIError: _answer_database,
            OperationalError: _answer_absence,
            InterfaceError: _answer_absence,
            OSError: _answer_absence,
            PoolTimeout: _answer_absence,
            Exception: _answer_surprise,
        },
    )
    application.state.site = Site(engine, settings, clock or SystemClock(), LoginAttempts(), load_templates())
    return _Guarded(application)


class _Guarded:
    """Adds to every answer the headers that keep a page to itself."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._application(scope, receive, guarded_send)


def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SteelyardError)
    return _problem(request, status=error.status, message=error.public_message, code=error.code)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "There is no such page." if error.status_code == 404 else error.detail
    return _problem(request, status=error.status_code, message=message, code="route_unknown")


def _answer_absence(request: Request, error: Exception) -> Response:
    _log.warning("console_database_unreachable", extra={"cause": type(error).__name__})
    message = "The database can't answer now. What runs goes on; try again in a moment."
    response = _problem(request, status=503, message=message, code=DependencyError.code)
    response.headers["retry-after"] = "5"
    return response


def _answer_database(request: Request, error: Exception) -> Response:
    """A value that no text of the database can be, such as one with a NUL, is the visitor's mistake."""
    assert isinstance(error, DBAPIError)
    state = str(getattr(error.orig, "sqlstate", ""))
    if state in _BUSY:
        return _answer_absence(request, error)
    if not state.startswith("22"):
        return _answer_surprise(request, error)
    message = "A value in the address or the form can't be what it is."
    return _problem(request, status=400, message=message, code=RejectReason.PARAMETER_INVALID.value)


def _answer_surprise(request: Request, error: Exception) -> Response:
    incident = uuid4().hex
    _log.error("console_failed", extra={"incident": incident, "path": request.url.path}, exc_info=error)
    return _problem(
        request, status=500, message=f"This page failed: incident {incident}.", code=SteelyardError.code
    )


def _problem(request: Request, *, status: int, message: str, code: str) -> Response:
    return render(request, "problem", status=status, message=message, code=code)
