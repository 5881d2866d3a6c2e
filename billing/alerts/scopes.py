"""What allowances are of: the columns that alerts read of tenants, projects, keys and tasks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Text, case, column, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import TenantId
from billing.quota.tables import allowance

_TEXTS = [column(name, Text) for name in ("id", "tenant_id", "name")]
_TENANT = table("tenant", column("id", Text), column("name", Text), column("currency", Text))
_SCOPES = {
    "tenant": _TENANT,
    "project": table("project", *(column(each.name, Text) for each in _TEXTS)),
    "key": table("api_key", *(column(each.name, Text) for each in _TEXTS)),
    "task": table("task", *(column(each.name, Text) for each in _TEXTS)),
}


def scope_name() -> ColumnElement[Any]:
    """The name of what a row of `allowance` is of."""
    return case(*((allowance.c.scope_kind == kind, _name(kind)) for kind in _SCOPES))


def currency() -> ScalarSelect[Any]:
    """The currency of the tenant of a row of `allowance`."""
    return select(_TENANT.c.currency).where(_TENANT.c.id == allowance.c.tenant_id).scalar_subquery()


async def belongs(connection: AsyncConnection, tenant_id: TenantId, *, kind: str, scope_id: str) -> bool:
    """Whether there is such a thing of this tenant."""
    if kind == "tenant":
        return scope_id == tenant_id
    there = _SCOPES[kind].c
    found = select(there.id).where(there.id == scope_id, there.tenant_id == tenant_id)
    return (await connection.execute(found)).first() is not None


def _name(kind: str) -> ScalarSelect[Any]:
    there = _SCOPES[kind].c
    return select(there.name).where(there.id == allowance.c.scope_id).scalar_subquery()
