"""`/members`, `/access-tokens` and `/audit-log`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import Field, SecretStr

from app.control.call import Call, Reads, Writes
from app.control.schemas import Identifier, In, Moment, Name, Out, Page, PagingQuery, Patch
from app.control.views.routes import router
from app.core.errors import Rejected, RejectReason
from app.core.ids import MemberId, TenantId
from app.identity import audit, members
from app.identity.errors import invalid
from app.identity.model import Role, Scope
from app.identity.tenants import get_tenant

api = router("members")


class MemberIn(In):
    email: str = Field(
        min_length=3,
        max_length=254,
        pattern=r"^[^@\s\x00-\x1f\x7f]+@[^@\s\x00-\x1f\x7f]+$",
        examples=["a@b.example"],
    )
    name: Name | None = None
    role: Role
    tenant_id: Identifier | None = Field(None, description="Null: staff of the operator.")
    password: SecretStr | None = Field(None, description="12 to 256 characters; null: access tokens only.")


class MemberPatch(Patch):
    name: Name | None = None
    status: Literal["active", "disabled"] | None = Field(
        None, description="A disabled member's tokens and sessions open nothing."
    )
    password: SecretStr | None = None


class MemberOut(Out):
    id: str
    tenant_id: str | None
    email: str
    name: str
    role: Role
    status: str
    created_at: datetime


class TokenIn(In):
    name: Name = Field(examples=["laptop"])
    expires_at: Moment | None = None


class TokenOut(Out):
    id: str
    member_id: str
    name: str
    last_four: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewToken(TokenOut):
    """A token with its secret: the only time that it is shown."""

    token: str = Field(examples=["sya_…"])


class AuditOut(Out):
    """One act. `hash` chains it to the one before."""

    sequence: int
    at: datetime
    actor: str
    action: str
    object_type: str
    object_id: str
    tenant_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    from_address: str | None
    hash: str


@api.post("/members", status_code=201, summary="Create a member")
async def create_member(
    body: MemberIn, call: Annotated[Call, Depends(Writes(Scope.MEMBERS_WRITE))]
) -> MemberOut:
    if body.tenant_id is not None:
        await get_tenant(call.connection, body.tenant_id, within=call.within)
    created = await members.create_member(
        call.connection,
        email=body.email,
        role=body.role,
        tenant_id=None if body.tenant_id is None else TenantId(body.tenant_id),
        name=body.name or "",
        password=None if body.password is None else body.password.get_secret_value(),
        trail=call.trail,
    )
    return MemberOut.model_validate(created)


@api.get("/members", summary="List members")
async def list_members(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.MEMBERS_READ))]
) -> Page[MemberOut]:
    rows = await members.list_members(call.connection, after=paging.after, limit=paging.fetch)
    return paging.page(rows, MemberOut.model_validate)


@api.patch("/members/{member_id}", summary="Rename, disable or enable a member; set a password")
async def change_member(
    member_id: str, body: MemberPatch, call: Annotated[Call, Depends(Writes(Scope.MEMBERS_WRITE))]
) -> MemberOut:
    changes = body.changes()
    password = changes.pop("password", None)
    changed = await members.change_member(
        call.connection,
        member_id,
        changes=changes,
        password=None if password is None else password.get_secret_value(),
        trail=call.trail,
    )
    return MemberOut.model_validate(changed)


@api.post("/access-tokens", status_code=201, summary="Create an access token of yours; it is shown once")
async def create_access_token(
    body: TokenIn, call: Annotated[Call, Depends(Writes(Scope.SELF_WRITE))]
) -> NewToken:
    created, secret = await members.create_access_token(
        call.connection, _member(call), **body.model_dump(), now=call.now, trail=call.trail
    )
    call.hide_answer(access_token_id=created.id)
    return NewToken(**TokenOut.model_validate(created).model_dump(), token=secret)


@api.get("/access-tokens", summary="List your access tokens")
async def list_access_tokens(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.SELF_READ))]
) -> Page[TokenOut]:
    rows = await members.list_access_tokens(
        call.connection, _member(call), after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, TokenOut.model_validate)


@api.post("/access-tokens/{token_id}/revoke", summary="Revoke an access token of yours")
async def revoke_access_token(
    token_id: str, call: Annotated[Call, Depends(Writes(Scope.SELF_WRITE))]
) -> TokenOut:
    revoked = await members.revoke_access_token(
        call.connection, token_id, member_id=_member(call), now=call.now, trail=call.trail
    )
    return TokenOut.model_validate(revoked)


@api.get("/audit-log", summary="List who changed what, newest first")
async def list_audit_log(
    paging: PagingQuery,
    call: Annotated[Call, Depends(Reads(Scope.AUDIT_READ))],
    object_id: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[AuditOut]:
    if paging.after is not None and not (paging.after.isascii() and paging.after.isdigit()):
        invalid("The cursor is the `next` of a page.", param="after")
    rows = await audit.list_entries(
        call.connection,
        before_sequence=None if paging.after is None else int(paging.after),
        limit=paging.fetch,
        object_id=object_id,
    )
    shown = rows[: paging.limit]
    more = len(rows) > paging.limit
    data = [AuditOut.model_validate({**row, "hash": bytes(row["hash"]).hex()}) for row in shown]
    return Page(data=data, has_more=more, next=str(shown[-1]["sequence"]) if more else None)


def _member(call: Call) -> MemberId:
    if call.actor.role is None:
        raise Rejected(RejectReason.SCOPE_MISSING, "This is for members.", status=403)
    return MemberId(call.actor.id)
