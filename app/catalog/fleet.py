"""Deployments and their backends. Engine addresses come from operators alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.model import Backend, Deployment
from app.catalog.models import get_model
from app.catalog.tables import backend, deployment
from app.core import ids
from app.core.errors import Conflict
from app.identity.audit import Trail
from app.identity.errors import invalid, not_found


async def create_deployment(
    connection: AsyncConnection, model: str, *, policy: str, trail: Trail
) -> Deployment:
    """The deployment of a model, named by id or name; a model has one."""
    served = await get_model(connection, model)
    values = {"id": ids.deployment_id(), "model_id": served.id, "policy": policy}
    row = (await connection.execute(insert(deployment).values(values).returning(deployment))).one()
    created = Deployment(**row._mapping)
    trail.note("deployment.create", created.id, after=asdict(created))
    return created


async def get_deployment(connection: AsyncConnection, deployment_id: str) -> Deployment:
    """The deployment. Raises Rejected (404) if there is none."""
    row = (await connection.execute(select(deployment).where(deployment.c.id == deployment_id))).one_or_none()
    if row is None:
        not_found("deployment", deployment_id)
    return Deployment(**row._mapping)


async def list_deployments(connection: AsyncConnection, *, after: str | None, limit: int) -> list[Deployment]:
    """Deployments in the order of their making, after a given one."""
    query = select(deployment).where(deployment.c.id > (after or "")).order_by(deployment.c.id).limit(limit)
    return [Deployment(**row._mapping) for row in await connection.execute(query)]


def check_base_url(base_url: str) -> str:
    """The address without a trailing slash. Raises Rejected unless it is a plain http(s) URL of a machine."""
    try:
        parts = urlsplit(base_url)
        port_is_valid = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        invalid("The address of an engine is a URL such as http://10.0.0.7:8000.", param="base_url")
    is_plain = base_url.isprintable() and " " not in base_url  # the parser drops what it doesn't like
    is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    if not (is_plain and is_web and port_is_valid):
        invalid("The address of an engine is a URL such as http://10.0.0.7:8000.", param="base_url")
    if parts.username or parts.password or parts.query or parts.fragment:
        invalid("The address of an engine has no user, query or fragment.", param="base_url")
    if _is_link_local(parts.hostname or ""):
        invalid("Link-local addresses (cloud metadata) are never engines.", param="base_url")
    return base_url.rstrip("/")


def _is_link_local(host: str) -> bool:
    try:
        return ip_address(host).is_link_local
    except ValueError:
        return False


async def create_backend(
    connection: AsyncConnection,
    deployment_id: str,
    *,
    base_url: str,
    engine: str,
    served_model: str,
    max_concurrent: int,
    weight: int,
    trail: Trail,
) -> Backend:
    """A new active backend of a deployment."""
    owner = await get_deployment(connection, deployment_id)
    values = {
        "id": ids.backend_id(),
        "deployment_id": owner.id,
        "base_url": check_base_url(base_url),
        "engine": engine,
        "served_model": served_model,
        "max_concurrent": max_concurrent,
        "weight": weight,
    }
    row = (await connection.execute(insert(backend).values(values).returning(backend))).one()
    created = Backend(**row._mapping)
    trail.note("backend.create", created.id, after=asdict(created))
    return created


async def get_backend(connection: AsyncConnection, backend_id: str, *, lock: bool = False) -> Backend:
    """The backend, removed ones too. Raises Rejected (404) if there is none."""
    query = select(backend).where(backend.c.id == backend_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        not_found("backend", backend_id)
    return Backend(**row._mapping)


async def list_backends(
    connection: AsyncConnection, *, deployment_id: str | None = None, after: str | None, limit: int
) -> list[Backend]:
    """Backends that aren't removed, in the order of their making, after a given one."""
    query = select(backend).where(backend.c.id > (after or ""), backend.c.status != "removed")
    if deployment_id is not None:
        query = query.where(backend.c.deployment_id == deployment_id)
    rows = await connection.execute(query.order_by(backend.c.id).limit(limit))
    return [Backend(**row._mapping) for row in rows]


async def change_backend(
    connection: AsyncConnection,
    backend_id: str,
    *,
    changes: Mapping[str, Any],
    action: str = "backend.change",
    trail: Trail,
) -> Backend:
    """The backend with other values. Raises Conflict if it was removed; no change is no act."""
    before = await get_backend(connection, backend_id, lock=True)
    if before.status == "removed" and changes.get("status") == "removed":
        return before
    if before.status == "removed":
        raise Conflict("A removed backend stays removed; add it anew.", id=before.id)
    values = dict(changes)
    if "base_url" in values:
        values["base_url"] = check_base_url(values["base_url"])
    if all(getattr(before, name) == value for name, value in values.items()):
        return before
    changed = update(backend).where(backend.c.id == before.id).values(values).returning(backend)
    after = Backend(**(await connection.execute(changed)).one()._mapping)
    trail.note(action, after.id, before=asdict(before), after=asdict(after))
    return after
