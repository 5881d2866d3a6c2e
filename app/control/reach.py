"""What a question about usage may reach: the caller's tenant, and for an API key its own project."""

from __future__ import annotations

from app.catalog import models
from app.control.call import Call
from app.core.errors import Rejected, RejectReason
from app.identity.errors import invalid
from app.insights.usage import GROUPS, UsageFilter

_NOTHING = ""
"""An id that nothing has."""


async def reach(call: Call, only: UsageFilter, *, models_asked: list[str]) -> UsageFilter:
    """The filter held within the caller's reach, with models by id; an unknown model has no usage."""
    tenant_ids, project_ids = only.tenant_ids, only.project_ids
    if call.within is not None:
        tenant_within(call, tenant_ids[0] if tenant_ids else None)
        tenant_ids = (call.within,)
    if call.actor.project_id is not None:
        own = str(call.actor.project_id)
        project_ids = (own,) if own in project_ids or not project_ids else (_NOTHING,)
    known = await models.resolve_models(call.connection, set(models_asked))
    model_ids = tuple(known.get(name, _NOTHING) for name in models_asked)
    return UsageFilter(tenant_ids, project_ids, only.key_ids, model_ids)


def groups(asked: list[str]) -> tuple[str, ...]:
    """Valid names to group by, each once, in a fixed order. Raises Rejected (400) for another."""
    names = {name.strip() for name in asked if name.strip()}
    unknown = sorted(names - GROUPS.keys())
    if unknown:
        invalid(f"Can't group by {unknown[0][:40]!r}; there are {', '.join(GROUPS)}.", param="group_by")
    return tuple(name for name in GROUPS if name in names)


def tenant_within(call: Call, asked: str | None) -> str | None:
    """The tenant to look at. Raises Rejected (404) if it is beyond the caller's reach."""
    if call.within is None or asked in (None, call.within):
        return asked or call.within
    raise Rejected(RejectReason.NOT_FOUND, f"There is no tenant {asked!r}.", status=404)
