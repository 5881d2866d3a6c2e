"""Who calls: an access token, an API key that may read usage, or the console's session cookie."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request

from app.core.errors import Rejected, RejectReason
from app.identity.credentials import ACCESS_TOKEN_PREFIX, API_KEY_PREFIX, digest_of
from app.identity.keys import find_live_key
from app.identity.members import find_token_holder
from app.identity.model import Actor, Scope
from app.identity.sessions import SESSION_COOKIE, find_session
from app.identity.tenants import get_project, get_tenant

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


async def authenticate(request: Request, connection: AsyncConnection, *, now: datetime) -> Actor:
    """The actor behind a request. Raises Rejected (401) if there is none, without saying why."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret.startswith(ACCESS_TOKEN_PREFIX):
        holder = await find_token_holder(connection, digest_of(secret), now=now)
        return holder.actor() if holder else _unknown()
    if scheme.lower() == "bearer" and secret.startswith(API_KEY_PREFIX):
        return await _key_holder(connection, secret, now=now)
    cookie = request.cookies.get(SESSION_COOKIE)
    if scheme or not cookie:
        return _unknown() if scheme else _missing()
    _refuse_cross_site(request)
    member = await find_session(connection, cookie, now=now)
    return member.actor() if member else _unknown()


async def _key_holder(connection: AsyncConnection, secret: str, *, now: datetime) -> Actor:
    key = await find_live_key(connection, digest_of(secret), now=now)
    if key is None:
        return _unknown()
    owner = await get_tenant(connection, key.tenant_id, within=None)
    project = await get_project(connection, key.project_id, within=None)
    if owner.status != "active":
        raise Rejected(RejectReason.TENANT_SUSPENDED, "The tenant is suspended.", status=403)
    if project.status != "active":
        raise Rejected(RejectReason.PROJECT_ARCHIVED, "The project is archived.", status=403)
    scopes = frozenset(key.scopes) & {Scope.USAGE_READ.value}
    return Actor(key.id, key.name, key.tenant_id, scopes, project_id=key.project_id)


def _refuse_cross_site(request: Request) -> None:
    """A cookie travels by itself, so a write that it carries must come from our own pages."""
    if request.method in _SAFE or request.headers.get("sec-fetch-site") == "same-origin":
        return
    if request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}":
        return
    raise Rejected(RejectReason.SCOPE_MISSING, "A write by cookie must come from the console.", status=403)


def _missing() -> Actor:
    raise Rejected(RejectReason.KEY_MISSING, "Send an access token: Authorization: Bearer sya_…", status=401)


def _unknown() -> Actor:
    raise Rejected(RejectReason.KEY_UNKNOWN, "The credential is unknown, expired or revoked.", status=401)
