"""How a router of views is made: every route runs through the edge and documents its errors."""

from __future__ import annotations

from fastapi import APIRouter, Security
from fastapi.security import APIKeyCookie, HTTPBearer

from app.control.edge import EdgeRoute
from app.control.errors import RESPONSES
from app.identity.sessions import SESSION_COOKIE

_bearer = HTTPBearer(
    auto_error=False, scheme_name="access_token", description="`sya_…`; usage also takes an API key."
)
_cookie = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, scheme_name="session", description="The console's session."
)


def router(tag: str, *, prefix: str = "/api/v1") -> APIRouter:
    """An empty router for the views of one resource."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=EdgeRoute,
        responses=RESPONSES,
        dependencies=[Security(_bearer), Security(_cookie)],
    )
