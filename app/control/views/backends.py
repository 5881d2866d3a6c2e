"""`/backends`: engines and their addresses; operators only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import Field

from app.catalog import fleet
from app.catalog.connection_test import probe_engine
from app.control.call import Call, Reads, Writes
from app.control.schemas import Identifier, In, Out, Page, PagingQuery, Patch
from app.control.views.routes import router
from app.core.errors import Conflict
from app.identity.model import Scope

api = router("backends")
_Engine = Literal["vllm", "llama-server", "sglang", "openai", "simulator"]
_Address = Annotated[str, Field(max_length=500)]
_Concurrent = Annotated[int, Field(ge=1, le=100_000, description="Most requests at once.")]
_Test = Annotated[bool, Query(description="Ask the engine first; 409 if it doesn't serve the model.")]
_Weight = Annotated[int, Field(ge=0, le=1000, description="Share of the load.")]


class BackendIn(In):
    deployment_id: Identifier
    base_url: _Address = Field(examples=["http://10.0.0.7:8000"])
    engine: _Engine
    served_model: Identifier = Field(description="The model's name at the engine.")
    max_concurrent: _Concurrent = 64
    weight: _Weight = 100


class BackendPatch(Patch):
    base_url: _Address | None = None
    engine: _Engine | None = None
    served_model: Identifier | None = None
    max_concurrent: _Concurrent | None = None
    weight: _Weight | None = None


class BackendOut(Out):
    id: str
    deployment_id: str
    base_url: str
    engine: str
    served_model: str
    max_concurrent: int
    weight: int
    status: str
    created_at: datetime


@api.post("/backends", status_code=201, summary="Add an engine to a deployment")
async def create_backend(
    body: BackendIn,
    call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))],
    *,
    test: _Test = False,
) -> BackendOut:
    if test:
        await _require_answer(body)
    created = await fleet.create_backend(call.connection, **body.model_dump(), trail=call.trail)
    return BackendOut.model_validate(created)


@api.get("/backends", summary="List backends that aren't removed")
async def list_backends(
    paging: PagingQuery,
    call: Annotated[Call, Depends(Reads(Scope.FLEET_READ))],
    deployment_id: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[BackendOut]:
    rows = await fleet.list_backends(
        call.connection, deployment_id=deployment_id, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, BackendOut.model_validate)


@api.get("/backends/{backend_id}", summary="Show a backend")
async def show_backend(
    backend_id: str, call: Annotated[Call, Depends(Reads(Scope.FLEET_READ))]
) -> BackendOut:
    return BackendOut.model_validate(await fleet.get_backend(call.connection, backend_id))


@api.patch("/backends/{backend_id}", summary="Change a backend")
async def change_backend(
    backend_id: str, body: BackendPatch, call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))]
) -> BackendOut:
    return await _changed(call, backend_id, changes=body.changes(), action="backend.change")


@api.delete("/backends/{backend_id}", summary="Remove a backend; running requests end as they are")
async def remove_backend(
    backend_id: str, call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))]
) -> BackendOut:
    return await _changed(call, backend_id, changes={"status": "removed"}, action="backend.remove")


@api.post("/backends/{backend_id}/drain", summary="Send no new requests to a backend")
async def drain_backend(
    backend_id: str, call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))]
) -> BackendOut:
    return await _changed(call, backend_id, changes={"status": "draining"}, action="backend.drain")


@api.post("/backends/{backend_id}/undrain", summary="Send requests to a backend again")
async def undrain_backend(
    backend_id: str, call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))]
) -> BackendOut:
    return await _changed(call, backend_id, changes={"status": "active"}, action="backend.undrain")


async def _changed(call: Call, backend_id: str, *, changes: dict[str, Any], action: str) -> BackendOut:
    changed = await fleet.change_backend(
        call.connection, backend_id, changes=changes, action=action, trail=call.trail
    )
    return BackendOut.model_validate(changed)


async def _require_answer(body: BackendIn) -> None:
    report = await probe_engine(fleet.check_base_url(body.base_url), served_model=body.served_model)
    if report.problem is not None:
        raise Conflict(f"The engine failed the test: {report.problem}.", reachable=report.reachable)
