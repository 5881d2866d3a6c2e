"""Where limits are looked at: a tenant, one of its projects, or a key, within the caller's reach."""

from __future__ import annotations

from collections.abc import Mapping

from app.control.call import Call
from app.control.limit_shapes import model_of
from app.control.reach import tenant_within
from app.core.errors import Rejected, RejectReason
from app.identity.errors import invalid
from app.identity.keys import get_key
from app.identity.model import Tenant
from app.identity.tenants import get_project, get_tenant
from app.insights.limits import Place


async def find_place(
    call: Call, asked: Mapping[str, str | None], *, model: str | None
) -> tuple[Tenant, Place]:
    """The tenant, and the place of the most special id that is asked for.

    asked: `tenant_id`, `project_id`, `key_id`, each or None. An API key's place is the key itself. Raises
    Rejected: 404 if something isn't there or is beyond the caller's reach, 400 if the ids don't belong
    together, or none is said and there are many tenants.
    """
    tenant_id, project_id, key_id = (asked[name] for name in ("tenant_id", "project_id", "key_id"))
    tenant_within(call, tenant_id)
    if call.actor.project_id is not None:
        _require_own(call, project_id=project_id, key_id=key_id)
        key_id = call.actor.id
    names: dict[str, str] = {}
    if key_id is not None:
        key = await get_key(call.connection, key_id, within=call.within)
        names[key.id] = key.name
        project_id = _same(project_id, key.project_id, param="project_id")
    if project_id is not None:
        project = await get_project(call.connection, project_id, within=call.within)
        names[project.id] = project.name
        tenant_id = _same(tenant_id, project.tenant_id, param="tenant_id")
    tenant_id = tenant_id or call.within
    if tenant_id is None:
        invalid("Say of which tenant, project or key.", param="tenant_id")
    owner = await get_tenant(call.connection, tenant_id, within=call.within)
    names[owner.id] = owner.name
    model_id = await model_of(call.connection, model)
    return owner, Place(owner.id, names, project_id, key_id, model_id)


def _require_own(call: Call, *, project_id: str | None, key_id: str | None) -> None:
    for kind, given, own in (
        ("project", project_id, call.actor.project_id),
        ("api key", key_id, call.actor.id),
    ):
        if given not in (None, own):
            raise Rejected(RejectReason.NOT_FOUND, f"There is no {kind} {given!r}.", status=404)


def _same(given: str | None, is_so: str, *, param: str) -> str:
    if given not in (None, is_so):
        invalid("The ids don't belong together.", param=param)
    return is_so
