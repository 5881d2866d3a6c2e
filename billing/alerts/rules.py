"""A tenant's rules: at which thresholds it hears of which allowances. The worker follows a change at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NoReturn

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Rejected, RejectReason
from app.core.ids import AlertRuleId, TenantId
from billing.alerts import scopes
from billing.alerts.model import Rule
from billing.alerts.tables import alert_rule, alert_sweep


async def create_rule(
    connection: AsyncConnection,
    tenant_id: TenantId,
    *,
    terms: Mapping[str, Any],
    created_by: str,
    now: datetime,
) -> Rule:
    """A new rule.   terms: `scope_kind, scope_id, what, window_kind, percents, remaining`; or None.

    Raises Rejected (404) if the scope is not the tenant's, IntegrityError if it has a rule for the same.
    """
    kind, scope_id = terms.get("scope_kind"), terms.get("scope_id")
    if kind and scope_id and not await scopes.belongs(connection, tenant_id, kind=kind, scope_id=scope_id):
        _unknown(kind, scope_id)
    values = {**terms, "id": ids.alert_rule_id(), "tenant_id": tenant_id}
    values |= {"created_by": created_by, "created_at": now}
    row = (await connection.execute(insert(alert_rule).values(values).returning(alert_rule))).one()
    await _ask_for_sweep(connection, tenant_id)
    return _rule(row)


async def get_rule(connection: AsyncConnection, rule_id: str, *, within: TenantId | None) -> Rule:
    """The rule. Raises Rejected (404) if there is none within reach."""
    row = (await connection.execute(select(alert_rule).where(alert_rule.c.id == rule_id))).one_or_none()
    if row is None or within not in (None, row.tenant_id):
        _unknown("alert rule", rule_id)
    return _rule(row)


async def change_rule(
    connection: AsyncConnection, rule_id: AlertRuleId, *, changes: Mapping[str, Any]
) -> Rule:
    """The rule with other `percents` or `remaining`. What was told is not told again."""
    changed = update(alert_rule).where(alert_rule.c.id == rule_id).values(dict(changes)).returning(alert_rule)
    row = (await connection.execute(changed)).one_or_none()
    if row is None:
        _unknown("alert rule", rule_id)
    await _ask_for_sweep(connection, row.tenant_id)
    return _rule(row)


async def remove_rule(connection: AsyncConnection, rule: Rule) -> None:
    """Remove a rule: what it fitted follows the next one, and no rule at all means 50, 80 and 100 %."""
    await connection.execute(delete(alert_rule).where(alert_rule.c.id == rule.id))
    await _ask_for_sweep(connection, rule.tenant_id)


async def list_rules(
    connection: AsyncConnection, *, tenant_id: TenantId | None, after: str | None, limit: int
) -> list[Rule]:
    """Rules in the order of their making, after a given one.   tenant_id: None is every tenant."""
    query = select(alert_rule).where(alert_rule.c.id > (after or "")).order_by(alert_rule.c.id).limit(limit)
    if tenant_id is not None:
        query = query.where(alert_rule.c.tenant_id == tenant_id)
    return [_rule(row) for row in await connection.execute(query)]


async def list_rules_of(connection: AsyncConnection, tenant_ids: Collection[TenantId]) -> list[Rule]:
    """All rules of some tenants."""
    query = select(alert_rule).where(alert_rule.c.tenant_id.in_(tenant_ids))
    return [_rule(row) for row in await connection.execute(query)]


async def _ask_for_sweep(connection: AsyncConnection, tenant_id: TenantId) -> None:
    new = postgresql.insert(alert_sweep).values(tenant_id=tenant_id)
    anew = {"version": alert_sweep.c.version + 1, "after": ""}
    await connection.execute(new.on_conflict_do_update(index_elements=["tenant_id"], set_=anew))


def _rule(row: Row[Any]) -> Rule:
    return Rule(**{**row._mapping, "percents": tuple(row.percents)})


def _unknown(kind: str, object_id: str) -> NoReturn:
    what = f"There is no {kind} {object_id[:100]!r}."
    raise Rejected(RejectReason.NOT_FOUND, what, status=404, kind=kind, id=object_id[:100])
