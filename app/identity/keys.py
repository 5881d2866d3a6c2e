"""API keys: a project's credentials for the data plane, shown once, rotated with an overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import KeyId, TenantId
from app.identity.audit import Trail
from app.identity.credentials import new_api_key
from app.identity.errors import invalid, not_found
from app.identity.model import ApiKey
from app.identity.tables import api_key
from app.identity.tenants import get_project

KEY_SCOPES = ("inference", "usage:read")
_PUBLIC = [column for column in api_key.c if column.name != "digest"]


async def create_key(
    connection: AsyncConnection,
    project_id: str,
    *,
    name: str,
    scopes: Sequence[str] = KEY_SCOPES,
    models: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    within: TenantId | None,
    now: datetime,
    trail: Trail,
) -> tuple[ApiKey, str]:
    """A new key of a project, and its secret: the only time that it is known.

    models: names the key may use; None: all.
    """
    owner = await get_project(connection, project_id, within=within)
    if owner.status != "active":
        raise Conflict("The project is archived.", id=owner.id)
    if expires_at is not None and expires_at <= now:
        invalid("The end of a key lies in the future.", param="expires_at")
    values = {
        "tenant_id": owner.tenant_id,
        "project_id": owner.id,
        "name": name,
        "scopes": list(scopes),
        "models": None if models is None else list(models),
        "expires_at": expires_at,
    }
    created, secret = await _insert(connection, values, trail=trail)
    trail.note("api_key.create", created.id, tenant_id=created.tenant_id, after=asdict(created))
    return created, secret


async def get_key(
    connection: AsyncConnection, key_id: str, *, within: TenantId | None, lock: bool = False
) -> ApiKey:
    """The key without its secret. Raises Rejected (404) if there is none within reach."""
    query = select(*_PUBLIC).where(api_key.c.id == key_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        not_found("api key", key_id)
    return _key(row)


async def list_keys(
    connection: AsyncConnection, project_id: str, *, within: TenantId | None, after: str | None, limit: int
) -> list[ApiKey]:
    """A project's keys in the order of their making, after a given one; dead ones too."""
    await get_project(connection, project_id, within=within)
    query = select(*_PUBLIC).where(api_key.c.project_id == project_id, api_key.c.id > (after or ""))
    return [_key(row) for row in await connection.execute(query.order_by(api_key.c.id).limit(limit))]


async def find_live_key(connection: AsyncConnection, digest: bytes, *, now: datetime) -> ApiKey | None:
    """The key with this digest, if it is neither revoked nor expired."""
    row = (await connection.execute(select(*_PUBLIC).where(api_key.c.digest == digest))).one_or_none()
    key = None if row is None else _key(row)
    return key if key is not None and key.state(now) in ("active", "expiring") else None


async def rotate_key(
    connection: AsyncConnection,
    key_id: str,
    *,
    overlap: timedelta,
    within: TenantId | None,
    now: datetime,
    trail: Trail,
) -> tuple[ApiKey, str]:
    """A successor with the same rights, and its secret. The old key lives on for `overlap` at most.

    Raises Conflict if the key is dead or has been rotated before.
    """
    old = await get_key(connection, key_id, within=within, lock=True)
    if old.state(now) in ("revoked", "expired"):
        raise Conflict("A dead key can't be rotated; create a new one.", id=old.id)
    successor = select(api_key.c.id).where(api_key.c.rotated_from == old.id)
    if (await connection.execute(successor)).first() is not None:
        raise Conflict("The key has been rotated already; rotate its successor.", id=old.id)
    values = {
        "tenant_id": old.tenant_id,
        "project_id": old.project_id,
        "name": old.name,
        "scopes": list(old.scopes),
        "models": None if old.models is None else list(old.models),
        "expires_at": old.expires_at,
        "rotated_from": old.id,
    }
    created, secret = await _insert(connection, values, trail=trail)
    end = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
    ended = await _change(connection, old.id, expires_at=end)
    facts = {"before": asdict(old), "after": asdict(ended) | {"rotated_to": created.id}}
    trail.note("api_key.rotate", old.id, tenant_id=old.tenant_id, **facts)
    return created, secret


async def revoke_key(
    connection: AsyncConnection, key_id: str, *, within: TenantId | None, now: datetime, trail: Trail
) -> ApiKey:
    """The key, revoked: gateways refuse it within a second. A second time changes nothing."""
    old = await get_key(connection, key_id, within=within, lock=True)
    if old.revoked_at is not None:
        return old
    revoked = await _change(connection, old.id, revoked_at=now)
    facts = {"before": asdict(old), "after": asdict(revoked)}
    trail.note("api_key.revoke", old.id, tenant_id=old.tenant_id, **facts)
    return revoked


async def _insert(connection: AsyncConnection, values: dict[str, Any], *, trail: Trail) -> tuple[ApiKey, str]:
    credential = new_api_key()
    kept = {
        "id": ids.key_id(),
        "digest": credential.digest,
        "prefix": credential.prefix,
        "last_four": credential.last_four,
        "created_by": trail.actor,
    }
    row = (await connection.execute(insert(api_key).values(values | kept).returning(*_PUBLIC))).one()
    return _key(row), credential.secret


async def _change(connection: AsyncConnection, key_id: KeyId, **values: Any) -> ApiKey:
    changed = update(api_key).where(api_key.c.id == key_id).values(values).returning(*_PUBLIC)
    return _key((await connection.execute(changed)).one())


def _key(row: Any) -> ApiKey:
    facts = dict(row._mapping)
    facts["scopes"] = tuple(facts["scopes"])
    facts["models"] = None if facts["models"] is None else tuple(facts["models"])
    return ApiKey(**facts)
