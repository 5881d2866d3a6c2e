"""`/projects/{id}/keys` and `/keys`: API keys, each shown once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from fastapi import Body, Depends
from pydantic import Field

from app.control.call import Call, Reads, Writes
from app.control.schemas import Identifier, In, Moment, Name, Out, Page, PagingQuery
from app.control.views.routes import router
from app.identity import keys
from app.identity.model import ApiKey, Scope

api = router("keys")
_WEEK_S = 7 * 24 * 3600


class KeyIn(In):
    name: Name = Field(examples=["ci"])
    scopes: list[Literal["inference", "usage:read"]] = Field(
        ["inference", "usage:read"], min_length=1, max_length=2
    )
    models: list[Identifier] | None = Field(None, max_length=200, description="Names; null: every model.")
    expires_at: Moment | None = None


class Rotation(In):
    overlap_s: int = Field(
        3600, ge=0, le=_WEEK_S, description="Seconds for which the old key still works; at most a week."
    )


class KeyOut(Out):
    """A key without its secret."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    prefix: str
    last_four: str
    scopes: list[str]
    models: list[str] | None
    state: Literal["active", "expiring", "expired", "revoked"]
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_from: str | None

    @classmethod
    def of(cls, key: ApiKey, *, now: datetime) -> Self:
        return cls(**vars(key), state=key.state(now))


class NewKey(KeyOut):
    """A key with its secret: the only time that it is shown."""

    key: str = Field(examples=["sk-sy-…"])


@api.post("/projects/{project_id}/keys", status_code=201, summary="Create a key; its secret is shown once")
async def create_key(
    project_id: str, body: KeyIn, call: Annotated[Call, Depends(Writes(Scope.KEYS_WRITE))]
) -> NewKey:
    created, secret = await keys.create_key(
        call.connection,
        project_id,
        **body.model_dump(),
        within=call.within,
        now=call.now,
        trail=call.trail,
    )
    return _shown_once(call, created, secret=secret)


@api.get("/projects/{project_id}/keys", summary="List a project's keys, dead ones too")
async def list_keys(
    project_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.KEYS_READ))]
) -> Page[KeyOut]:
    rows = await keys.list_keys(
        call.connection, project_id, within=call.within, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, lambda key: KeyOut.of(key, now=call.now))


@api.get("/keys/{key_id}", summary="Show a key, without its secret")
async def show_key(key_id: str, call: Annotated[Call, Depends(Reads(Scope.KEYS_READ))]) -> KeyOut:
    found = await keys.get_key(call.connection, key_id, within=call.within)
    return KeyOut.of(found, now=call.now)


@api.post(
    "/keys/{key_id}/rotate", status_code=201, summary="Make a successor; the old key lives on for the overlap"
)
async def rotate_key(
    key_id: str,
    call: Annotated[Call, Depends(Writes(Scope.KEYS_WRITE))],
    body: Annotated[Rotation | None, Body()] = None,
) -> NewKey:
    overlap = timedelta(seconds=(body or Rotation()).overlap_s)
    created, secret = await keys.rotate_key(
        call.connection, key_id, overlap=overlap, within=call.within, now=call.now, trail=call.trail
    )
    return _shown_once(call, created, secret=secret)


@api.post("/keys/{key_id}/revoke", summary="Revoke a key: gateways refuse it within a second")
async def revoke_key(key_id: str, call: Annotated[Call, Depends(Writes(Scope.KEYS_WRITE))]) -> KeyOut:
    revoked = await keys.revoke_key(
        call.connection, key_id, within=call.within, now=call.now, trail=call.trail
    )
    return KeyOut.of(revoked, now=call.now)


def _shown_once(call: Call, created: ApiKey, *, secret: str) -> NewKey:
    call.hide_answer(key_id=created.id)
    return NewKey(**KeyOut.of(created, now=call.now).model_dump(), key=secret)
