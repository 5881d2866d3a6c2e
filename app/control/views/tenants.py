"""`/me`, `/tenants` and `/projects`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from fastapi import Depends
from pydantic import Field

from app.control.call import Call, Reads, Writes
from app.control.schemas import Currency, Identifier, In, Name, Out, Page, PagingQuery, Patch
from app.control.views.routes import router
from app.identity import tenants
from app.identity.model import Scope
from billing.ledger import service as ledger

api = router("tenants")


class Me(Out):
    """The caller."""

    id: str
    name: str
    role: str | None
    tenant_id: str | None = Field(description="The one tenant within reach; null: all of them.")
    scopes: list[str]


class TenantIn(In):
    name: Name = Field(examples=["Acme"])
    currency: Currency = Field(examples=["USD"], description="ISO 4217; for good.")
    timezone: Identifier = Field(
        "UTC", examples=["Europe/Berlin"], description="IANA; cuts days and periods."
    )
    price_book_id: Identifier | None = Field(None, description="Null: the default book of the currency.")


class TenantPatch(Patch):
    nullable: ClassVar[frozenset[str]] = frozenset({"price_book_id"})
    name: Name | None = None
    timezone: Identifier | None = None
    status: Literal["active", "suspended", "closed"] | None = Field(None, description="`closed` is for good.")
    price_book_id: Identifier | None = None
    on_suspend: Literal["finish", "cut"] | None = Field(
        None, description="What becomes of its running streams when it is suspended."
    )


class TenantOut(Out):
    id: str
    name: str
    currency: str
    timezone: str
    status: str
    price_book_id: str | None
    on_suspend: str
    created_at: datetime


class ProjectIn(In):
    name: Name = Field(examples=["chatbot"])


class ProjectPatch(Patch):
    name: Name | None = None
    status: Literal["active", "archived"] | None = None
    clamp_output: bool | None = Field(
        None,
        description="Give a request less output than it asks for where a limit leaves less, and tell it.",
    )


class ProjectOut(Out):
    id: str
    tenant_id: str
    name: str
    status: str
    clamp_output: bool
    created_at: datetime


@api.get("/me", summary="Who am I, and what may I do")
async def me(call: Annotated[Call, Depends(Reads(Scope.SELF_READ))]) -> Me:
    actor = call.actor
    return Me(
        id=actor.id,
        name=actor.name,
        role=actor.role,
        tenant_id=actor.tenant_id,
        scopes=sorted(map(str, actor.scopes)),
    )


@api.post("/tenants", status_code=201, summary="Create a tenant and its wallet")
async def create_tenant(
    body: TenantIn, call: Annotated[Call, Depends(Writes(Scope.TENANTS_WRITE))]
) -> TenantOut:
    created = await tenants.create_tenant(call.connection, **body.model_dump(), trail=call.trail)
    wallet = await ledger.open_wallet(call.connection, tenant_id=created.id, currency=created.currency)
    call.trail.note("wallet.open", wallet.id, tenant_id=created.id, after={"currency": wallet.currency})
    return TenantOut.model_validate(created)


@api.get("/tenants", summary="List tenants within reach")
async def list_tenants(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.TENANTS_READ))]
) -> Page[TenantOut]:
    rows = await tenants.list_tenants(
        call.connection, within=call.within, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, TenantOut.model_validate)


@api.get("/tenants/{tenant_id}", summary="Show a tenant")
async def show_tenant(tenant_id: str, call: Annotated[Call, Depends(Reads(Scope.TENANTS_READ))]) -> TenantOut:
    found = await tenants.get_tenant(call.connection, tenant_id, within=call.within)
    return TenantOut.model_validate(found)


@api.patch(
    "/tenants/{tenant_id}", summary="Rename, suspend, resume or close a tenant; set its price book and terms"
)
async def change_tenant(
    tenant_id: str, body: TenantPatch, call: Annotated[Call, Depends(Writes(Scope.TENANTS_WRITE))]
) -> TenantOut:
    changed = await tenants.change_tenant(
        call.connection, tenant_id, changes=body.changes(), trail=call.trail
    )
    return TenantOut.model_validate(changed)


@api.post("/tenants/{tenant_id}/projects", status_code=201, summary="Create a project")
async def create_project(
    tenant_id: str, body: ProjectIn, call: Annotated[Call, Depends(Writes(Scope.PROJECTS_WRITE))]
) -> ProjectOut:
    created = await tenants.create_project(
        call.connection, tenant_id, name=body.name, within=call.within, trail=call.trail
    )
    return ProjectOut.model_validate(created)


@api.get("/tenants/{tenant_id}/projects", summary="List a tenant's projects")
async def list_projects(
    tenant_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.PROJECTS_READ))]
) -> Page[ProjectOut]:
    rows = await tenants.list_projects(
        call.connection, tenant_id, within=call.within, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, ProjectOut.model_validate)


@api.get("/projects/{project_id}", summary="Show a project")
async def show_project(
    project_id: str, call: Annotated[Call, Depends(Reads(Scope.PROJECTS_READ))]
) -> ProjectOut:
    found = await tenants.get_project(call.connection, project_id, within=call.within)
    return ProjectOut.model_validate(found)


@api.patch(
    "/projects/{project_id}", summary="Rename, archive or revive a project; let limits clamp its output"
)
async def change_project(
    project_id: str, body: ProjectPatch, call: Annotated[Call, Depends(Writes(Scope.PROJECTS_WRITE))]
) -> ProjectOut:
    changed = await tenants.change_project(
        call.connection, project_id, changes=body.changes(), within=call.within, trail=call.trail
    )
    return ProjectOut.model_validate(changed)
