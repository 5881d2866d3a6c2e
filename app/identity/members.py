"""Members and their access tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import MemberId, TenantId
from app.identity.audit import Trail
from app.identity.credentials import new_access_token
from app.identity.errors import invalid, not_found
from app.identity.model import AccessToken, Member, Role
from app.identity.passwords import hash_password
from app.identity.tables import access_token, member, session

_PUBLIC = [column for column in member.c if column.name != "password_hash"]
_TOKEN = [column for column in access_token.c if column.name != "digest"]


async def create_member(
    connection: AsyncConnection,
    *,
    email: str,
    role: Role,
    tenant_id: TenantId | None,
    name: str = "",
    password: str | None,
    trail: Trail,
) -> Member:
    """A new member.   tenant_id: None for staff.   password: None for one who only has access tokens.

    An operator is always staff; a developer or viewer always belongs to a tenant.
    """
    if role is Role.OPERATOR and tenant_id is not None:
        invalid("An operator belongs to no tenant.", param="tenant_id")
    if role in (Role.DEVELOPER, Role.VIEWER) and tenant_id is None:
        invalid(f"A {role.value} belongs to a tenant.", param="tenant_id")
    values = {
        "id": ids.member_id(),
        "tenant_id": tenant_id,
        "email": email.strip().lower(),
        "name": name,
        "role": role.value,
        "password_hash": None if password is None else await hash_password(password),
    }
    created = to_member((await connection.execute(insert(member).values(values).returning(*_PUBLIC))).one())
    trail.note("member.create", created.id, tenant_id=tenant_id, after=asdict(created))
    return created


async def find_member_by_email(connection: AsyncConnection, email: str) -> Member | None:
    query = select(*_PUBLIC).where(member.c.email == email.strip().lower())
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else to_member(row)


async def list_members(connection: AsyncConnection, *, after: str | None, limit: int) -> list[Member]:
    """Members in the order of their making, after a given one."""
    query = select(*_PUBLIC).where(member.c.id > (after or "")).order_by(member.c.id).limit(limit)
    return [to_member(row) for row in await connection.execute(query)]


async def change_member(
    connection: AsyncConnection,
    member_id: str,
    *,
    changes: Mapping[str, Any],
    password: str | None = None,
    trail: Trail,
) -> Member:
    """The member with another name, status or password.

    A disabled member's tokens open nothing from now on; a new password or a disabling ends the member's
    sessions. Raises Conflict if members would disable themselves: an installation keeps its last operator.
    """
    query = select(*_PUBLIC).where(member.c.id == member_id).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        not_found("member", member_id)
    before = to_member(row)
    if changes.get("status") == "disabled" and member_id == trail.actor:
        raise Conflict("Nobody disables themselves; ask another operator.", id=member_id)
    values = dict(changes)
    if password is not None:
        values["password_hash"] = await hash_password(password)
    if not values:
        return before
    changed = update(member).where(member.c.id == member_id).values(values).returning(*_PUBLIC)
    after = to_member((await connection.execute(changed)).one())
    if password is not None or after.status != "active":
        await connection.execute(delete(session).where(session.c.member_id == after.id))
    facts = {"before": asdict(before), "after": asdict(after) | {"password_changed": password is not None}}
    trail.note("member.change", after.id, tenant_id=after.tenant_id, **facts)
    return after


async def create_access_token(
    connection: AsyncConnection,
    member_id: MemberId,
    *,
    name: str,
    expires_at: datetime | None = None,
    now: datetime,
    trail: Trail,
) -> tuple[AccessToken, str]:
    """A new token of a member, and its secret: the only time that it is known."""
    if expires_at is not None and expires_at <= now:
        invalid("The end of a token lies in the future.", param="expires_at")
    credential = new_access_token()
    values = {
        "id": ids.access_token_id(),
        "member_id": member_id,
        "name": name,
        "digest": credential.digest,
        "last_four": credential.last_four,
        "expires_at": expires_at,
    }
    row = (await connection.execute(insert(access_token).values(values).returning(*_TOKEN))).one()
    created = AccessToken(**row._mapping)
    trail.note("access_token.create", created.id, after=asdict(created))
    return created, credential.secret


async def list_access_tokens(
    connection: AsyncConnection, member_id: MemberId, *, after: str | None, limit: int
) -> list[AccessToken]:
    """A member's tokens in the order of their making, after a given one."""
    query = select(*_TOKEN).where(access_token.c.member_id == member_id, access_token.c.id > (after or ""))
    rows = await connection.execute(query.order_by(access_token.c.id).limit(limit))
    return [AccessToken(**row._mapping) for row in rows]


async def revoke_access_token(
    connection: AsyncConnection, token_id: str, *, member_id: MemberId, now: datetime, trail: Trail
) -> AccessToken:
    """The member's own token, revoked. A second time changes nothing."""
    own = (access_token.c.id == token_id) & (access_token.c.member_id == member_id)
    row = (await connection.execute(select(*_TOKEN).where(own).with_for_update())).one_or_none()
    if row is None:
        not_found("access token", token_id)
    old = AccessToken(**row._mapping)
    if old.revoked_at is not None:
        return old
    changed = update(access_token).where(own).values(revoked_at=now).returning(*_TOKEN)
    revoked = AccessToken(**(await connection.execute(changed)).one()._mapping)
    trail.note("access_token.revoke", old.id, before=asdict(old), after=asdict(revoked))
    return revoked


async def find_token_holder(connection: AsyncConnection, digest: bytes, *, now: datetime) -> Member | None:
    """The active member who holds the live token with this digest."""
    query = (
        select(*_PUBLIC)
        .join(access_token, access_token.c.member_id == member.c.id)
        .where(access_token.c.digest == digest, access_token.c.revoked_at.is_(None))
        .where(access_token.c.expires_at.is_(None) | (access_token.c.expires_at > now))
        .where(member.c.status == "active")
    )
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else to_member(row)


def to_member(row: Any) -> Member:
    """A member from a row of its public columns."""
    facts = dict(row._mapping)
    facts["role"] = Role(facts["role"])
    return Member(**facts)
