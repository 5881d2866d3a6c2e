"""Tenants and their projects: who pays, and where keys live.

`within` is the one tenant that the caller reaches, None for staff; a tenant or project beyond it
is answered as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from zoneinfo import available_timezones

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import PriceBookId, ProjectId, TenantId
from app.core.money import is_currency
from app.identity.audit import Trail
from app.identity.errors import invalid, not_found
from app.identity.model import Project, Tenant
from app.identity.tables import project, tenant
from billing.pricing import service as pricing


async def create_tenant(
    connection: AsyncConnection,
    *,
    name: str,
    currency: str,
    timezone: str,
    price_book_id: str | None,
    trail: Trail,
) -> Tenant:
    """A new active tenant. Raises Rejected if the currency, zone or price book can't be."""
    if not is_currency(currency):
        invalid("A currency is an ISO 4217 code such as USD.", param="currency")
    await _check(connection, timezone=timezone, price_book_id=price_book_id, currency=currency)
    values = {
        "id": ids.tenant_id(),
        "name": name,
        "currency": currency,
        "timezone": timezone,
        "price_book_id": price_book_id,
    }
    row = (await connection.execute(insert(tenant).values(values).returning(tenant))).one()
    created = Tenant(**row._mapping)
    trail.note("tenant.create", created.id, tenant_id=created.id, after=asdict(created))
    return created


async def get_tenant(connection: AsyncConnection, tenant_id: str, *, within: TenantId | None) -> Tenant:
    """The tenant. Raises Rejected (404) if there is none within reach."""
    query = select(tenant).where(tenant.c.id == tenant_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None or within not in (None, tenant_id):
        not_found("tenant", tenant_id)
    return Tenant(**row._mapping)


async def list_tenants(
    connection: AsyncConnection, *, within: TenantId | None, after: str | None, limit: int
) -> list[Tenant]:
    """Tenants within reach in the order of their making, after a given one."""
    query = select(tenant).where(tenant.c.id > (after or "")).order_by(tenant.c.id).limit(limit)
    if within is not None:
        query = query.where(tenant.c.id == within)
    return [Tenant(**row._mapping) for row in await connection.execute(query)]


async def change_tenant(
    connection: AsyncConnection, tenant_id: str, *, changes: Mapping[str, Any], trail: Trail
) -> Tenant:
    """The tenant with other name, timezone, status, price book or way to suspend. `closed` is for good.

    Keys of a suspended or closed tenant are refused by the gateways within a second.
    """
    before = await _locked_tenant(connection, tenant_id)
    if before.status == "closed" and changes.get("status", "closed") != "closed":
        raise Conflict("A closed tenant stays closed.", id=tenant_id)
    await _check(
        connection,
        timezone=changes.get("timezone"),
        price_book_id=changes.get("price_book_id"),
        currency=before.currency,
    )
    if not changes:
        return before
    changed = update(tenant).where(tenant.c.id == tenant_id).values(dict(changes)).returning(tenant)
    after = Tenant(**(await connection.execute(changed)).one()._mapping)
    trail.note("tenant.change", tenant_id, tenant_id=after.id, before=asdict(before), after=asdict(after))
    return after


async def create_project(
    connection: AsyncConnection, tenant_id: str, *, name: str, within: TenantId | None, trail: Trail
) -> Project:
    """A new active project of a tenant."""
    owner = await get_tenant(connection, tenant_id, within=within)
    values = {"id": ids.project_id(), "tenant_id": owner.id, "name": name}
    row = (await connection.execute(insert(project).values(values).returning(project))).one()
    created = Project(**row._mapping)
    trail.note("project.create", created.id, tenant_id=owner.id, after=asdict(created))
    return created


async def get_project(connection: AsyncConnection, project_id: str, *, within: TenantId | None) -> Project:
    """The project. Raises Rejected (404) if there is none within reach."""
    row = (await connection.execute(select(project).where(project.c.id == project_id))).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        not_found("project", project_id)
    return Project(**row._mapping)


async def list_projects(
    connection: AsyncConnection, tenant_id: str, *, within: TenantId | None, after: str | None, limit: int
) -> list[Project]:
    """A tenant's projects in the order of their making, after a given one."""
    await get_tenant(connection, tenant_id, within=within)
    query = select(project).where(project.c.tenant_id == tenant_id, project.c.id > (after or ""))
    rows = await connection.execute(query.order_by(project.c.id).limit(limit))
    return [Project(**row._mapping) for row in rows]


async def change_project(
    connection: AsyncConnection,
    project_id: ProjectId | str,
    *,
    changes: Mapping[str, Any],
    within: TenantId | None,
    trail: Trail,
) -> Project:
    """The project with another name, status or way with output. Keys of an archived one are refused."""
    before = await get_project(connection, project_id, within=within)
    if not changes:
        return before
    changed = update(project).where(project.c.id == project_id).values(dict(changes)).returning(project)
    after = Project(**(await connection.execute(changed)).one()._mapping)
    facts = {"before": asdict(before), "after": asdict(after)}
    trail.note("project.change", project_id, tenant_id=after.tenant_id, **facts)
    return after


async def _locked_tenant(connection: AsyncConnection, tenant_id: str) -> Tenant:
    query = select(tenant).where(tenant.c.id == tenant_id).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        not_found("tenant", tenant_id)
    return Tenant(**row._mapping)


async def _check(
    connection: AsyncConnection, *, timezone: str | None, price_book_id: str | None, currency: str
) -> None:
    if timezone is not None and timezone not in available_timezones():
        invalid("A timezone is an IANA name such as Europe/Berlin.", param="timezone")
    if price_book_id is None:
        return
    book = await pricing.find_book(connection, PriceBookId(price_book_id))
    if book is None:
        invalid("There is no such price book.", param="price_book_id")
    if book.currency != currency:
        invalid(f"The price book is in {book.currency}, the tenant in {currency}.", param="price_book_id")
