"""What a view gets and gives: the visitor, a connection, and the rendering of templates."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.console import present
from app.console.nav import reachable
from app.core.clock import Clock, from_ms
from app.core.errors import Rejected, RejectReason
from app.core.settings import Settings
from app.identity.model import Actor, Member
from app.identity.sessions import SESSION_COOKIE, LoginAttempts, find_session

FORM_COOKIE = "steelyard_form"
_LARGEST_FORM = 16 * 1024


@dataclass(frozen=True)
class Site:
    """What all pages share."""

    engine: AsyncEngine
    settings: Settings
    clock: Clock
    attempts: LoginAttempts
    templates: Environment

    def now(self) -> datetime:
        return from_ms(self.clock.now_ms())


@dataclass(frozen=True)
class Page:
    """One call of a signed-in visitor. The connection's transaction is committed after the view."""

    request: Request
    connection: AsyncConnection
    member: Member
    actor: Actor
    secret: str

    @property
    def site(self) -> Site:
        return site_of(self.request)

    def render(self, template: str, *, status: int = 200, **facts: Any) -> Response:
        known = {
            "member": self.member,
            "destinations": reachable(self.actor),
            "form_token": token_for(self.secret),
        }
        return render(self.request, template, status=status, **known, **facts)


View = Callable[[Page], Awaitable[Response]]


def load_templates() -> Environment:
    """The console's templates: escaped always, and strict about names."""
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for formatter in (present.amount, present.count, present.moment, present.duration, present.words):
        environment.filters[formatter.__name__] = formatter
    return environment


def site_of(request: Request) -> Site:
    site = request.app.state.site
    assert isinstance(site, Site)
    return site


def root_of(request: Request) -> str:
    """The path under which the console is mounted, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def render(request: Request, template: str, *, status: int = 200, **facts: Any) -> Response:
    """A page of HTML. Never kept by caches: it shows what one person may see."""
    known: Mapping[str, Any] = {"root": root_of(request), "path": _path_of(request), "member": None, **facts}
    text = site_of(request).templates.get_template(f"pages/{template}.html").render(known)
    return HTMLResponse(text, status_code=status, headers={"cache-control": "no-store"})


def signed_in(view: View) -> Callable[[Request], Awaitable[Response]]:
    """A route that only visitors with a live session reach; others are sent to the login page."""

    async def route(request: Request) -> Response:
        site = site_of(request)
        secret = request.cookies.get(SESSION_COOKIE, "")
        async with site.engine.begin() as connection:
            member = await find_session(connection, secret, now=site.now()) if secret else None
            if member is None:
                return _to_login(request)
            return await view(Page(request, connection, member, member.actor(), secret))

    return route


async def read_form(request: Request, *, secret: str) -> FormData:
    """The fields of a small form whose token fits `secret`. Raises Rejected else."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > _LARGEST_FORM:
        raise Rejected(RejectReason.BODY_TOO_LARGE, "The form is larger than a form can be.", status=413)
    form = await request.form(max_files=0, max_fields=20)
    if not hmac.compare_digest(str(form.get("token", "")).encode(), token_for(secret).encode()):
        raise Rejected(
            RejectReason.PARAMETER_INVALID, "This form is no longer valid: open the page again.", status=403
        )
    return form


def token_for(secret: str) -> str:
    """The token that a form carries beside a cookie: who can't read the cookie can't make it."""
    return hashlib.sha256(b"steelyard form\0" + secret.encode()).hexdigest()


def new_form_secret() -> str:
    return secrets.token_urlsafe(24)


def set_cookie(response: Response, name: str, *, value: str, request: Request, max_age_s: int | None) -> None:
    """Set a cookie that scripts can't read and other sites can't send along."""
    response.set_cookie(
        name,
        value,
        max_age=max_age_s,
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


def _path_of(request: Request) -> str:
    return "/" + request.url.path.removeprefix(root_of(request)).strip("/")


def _to_login(request: Request) -> Response:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{root_of(request)}/login?next={quote(wanted, safe='')}", status_code=303)
