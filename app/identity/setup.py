"""The first operator of an installation."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Conflict
from app.identity.audit import Trail, append
from app.identity.members import change_member, create_access_token, create_member, find_member_by_email
from app.identity.model import Role

ACTOR = "setup"


async def create_admin(connection: AsyncConnection, *, email: str, password: str, now: datetime) -> str:
    """The secret of a fresh access token of the operator with this e-mail, who is made if need be.

    Idempotent but for the token: a second call sets the password anew. Raises Conflict if the
    e-mail belongs to someone who is no operator.
    """
    trail = Trail(ACTOR)
    found = await find_member_by_email(connection, email)
    if found is not None and (found.role is not Role.OPERATOR or found.status != "active"):
        raise Conflict("This e-mail belongs to a member who is no active operator.", email=email)
    if found is None:
        admin = await create_member(
            connection, email=email, role=Role.OPERATOR, tenant_id=None, password=password, trail=trail
        )
    else:
        admin = await change_member(connection, found.id, changes={}, password=password, trail=trail)
    _, secret = await create_access_token(connection, admin.id, name="setup", now=now, trail=trail)
    await append(connection, trail, now=now)
    return secret
