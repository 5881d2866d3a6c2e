"""Who has which plan, and what another set of limits would change for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import PlanId, TenantId
from billing.quota.tables import plan_assignment
from billing.quota.terms import PlanLimit, Subject

_HOLDERS = text("""
SELECT t.id AS tenant_id, t.name, s.effective_from, s.effective_to, (
  SELECT count(DISTINCT o.id) FROM limit_override o
  JOIN unnest(CAST(:levels AS text[]), CAST(:models AS text[]), CAST(:whats AS text[]),
    CAST(:windows AS text[])) AS c(level, model_id, what, window_kind)
  ON o.scope_kind = c.level AND coalesce(o.model_id, '') = c.model_id AND o.what = c.what
    AND o.window_kind = c.window_kind
  WHERE o.tenant_id = t.id AND o.revoked_at IS NULL
    AND (o.expires_at IS NULL OR o.expires_at > clock_timestamp())) AS overrides
FROM plan_assignment s JOIN tenant t ON t.id = s.tenant_id
WHERE s.plan_id = :plan AND (s.effective_to IS NULL OR s.effective_to > clock_timestamp())
ORDER BY t.id, s.effective_from LIMIT :most
""")
_COUNT = text("""
SELECT count(DISTINCT tenant_id) FROM plan_assignment
WHERE plan_id = :plan AND (effective_to IS NULL OR effective_to > clock_timestamp())
""")


class Change(NamedTuple):
    """A limit of a plan before and after; None: there is none."""

    before: PlanLimit | None
    after: PlanLimit | None

    @property
    def subject(self) -> Subject:
        found = self.after or self.before
        assert found is not None
        return found.subject


class Holder(msgspec.Struct, frozen=True):
    """A tenant who has a plan, or will.   overrides: of its own that stand before limits that change."""

    tenant_id: TenantId
    name: str
    effective_from: datetime
    effective_to: datetime | None
    overrides: int


def changes(before: Iterable[PlanLimit], after: Iterable[PlanLimit]) -> list[Change]:
    """What differs between two sets of limits, in the order of the second one. Pure."""
    old = {each.subject: each for each in before}
    new = {each.subject: each for each in after}
    found = [Change(old.get(subject), limit) for subject, limit in new.items() if old.get(subject) != limit]
    return found + [Change(limit, None) for subject, limit in old.items() if subject not in new]


async def count_holders(connection: AsyncConnection, plan_id: PlanId) -> int:
    """How many tenants have a plan, or will."""
    return int(await connection.scalar(_COUNT, {"plan": plan_id}) or 0)


async def list_holders(
    connection: AsyncConnection, plan_id: PlanId, *, changed: Sequence[Change], most: int
) -> list[Holder]:
    """Tenants who have a plan or will, with what of the changes their own overrides hide."""
    subjects = [each.subject for each in changed]
    asked = {
        "plan": plan_id,
        "levels": [each.scope_kind for each in subjects],
        "models": [each.model_id or "" for each in subjects],
        "whats": [each.what for each in subjects],
        "windows": [each.window for each in subjects],
        "most": most,
    }
    return [Holder(**row) for row in (await connection.execute(_HOLDERS, asked)).mappings()]


async def plans_of(connection: AsyncConnection, tenant_id: TenantId) -> set[PlanId]:
    """The plans that a tenant has, had or will have."""
    mine = select(plan_assignment.c.plan_id).where(plan_assignment.c.tenant_id == tenant_id)
    return set((await connection.execute(mine)).scalars())
