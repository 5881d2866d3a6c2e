"""Signing in and out."""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.console.page import (
    FORM_COOKIE,
    Page,
    new_form_secret,
    read_form,
    render,
    root_of,
    set_cookie,
    site_of,
    token_for,
)
from app.core.errors import Rejected
from app.identity.sessions import SESSION_COOKIE, login, logout


async def show_login(request: Request) -> Response:
    """The form to sign in with."""
    return _form(request, wanted=request.query_params.get("next", ""))


async def submit_login(request: Request) -> Response:
    """Begin a session and go where the visitor wanted, or show the form again and say why."""
    form = await read_form(request, secret=request.cookies.get(FORM_COOKIE, ""))
    email, wanted = str(form.get("email", "")), str(form.get("next", ""))
    site = site_of(request)
    lifetime = timedelta(hours=site.settings.session_hours)
    try:
        async with site.engine.begin() as connection:
            secret = await login(
                connection,
                email=email,
                password=str(form.get("password", "")),
                attempts=site.attempts,
                now=site.now(),
                lifetime=lifetime,
                from_address=request.client.host if request.client else None,
            )
    except Rejected as refusal:
        return _form(request, wanted=wanted, email=email, refusal=refusal)
    response = RedirectResponse(_safe(request, wanted), status_code=303)
    set_cookie(
        response, SESSION_COOKIE, value=secret, request=request, max_age_s=int(lifetime.total_seconds())
    )
    response.delete_cookie(FORM_COOKIE)
    return response


async def submit_logout(page: Page) -> Response:
    """End the session."""
    await read_form(page.request, secret=page.secret)
    await logout(page.connection, page.secret)
    response = RedirectResponse(f"{root_of(page.request)}/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE)
    return response


def _form(request: Request, *, wanted: str, email: str = "", refusal: Rejected | None = None) -> Response:
    secret = request.cookies.get(FORM_COOKIE) or new_form_secret()
    response = render(
        request,
        "login",
        status=refusal.status if refusal else 200,
        next=wanted,
        email=email,
        problem=refusal.public_message if refusal else None,
        form_token=token_for(secret),
    )
    set_cookie(response, FORM_COOKIE, value=secret, request=request, max_age_s=None)
    if refusal is not None and refusal.retry_after_s is not None:
        response.headers["retry-after"] = str(int(refusal.retry_after_s) + 1)
    return response


def _safe(request: Request, wanted: str) -> str:
    """Where to go after signing in: only pages of this console, never another site's."""
    home = f"{root_of(request)}/"
    inside = wanted.startswith(home) and not wanted.startswith("//") and "\\" not in wanted
    return wanted if inside and wanted.isprintable() else home
