"""`/models` and `/deployments`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from fastapi import Depends
from pydantic import Field

from app.catalog import fleet, models
from app.catalog.model import Model
from app.control.call import Call, Reads, Writes
from app.control.schemas import Identifier, In, Out, Page, PagingQuery, Patch, Text
from app.control.views.routes import router
from app.identity.model import Scope

api = router("catalogue")
_MOST_TOKENS = 2**31 - 1
_Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
_Path = Annotated[
    str,
    Field(
        pattern=r"^/[^\x00-\x1f\x7f]+\.json$",
        max_length=1024,
        examples=["/srv/models/qwen3-8b/tokenizer.json"],
        description=(
            "The model's own `tokenizer.json` on the gateways' machines: counts what an engine that reports"
            " usage only at the end leaves uncounted. Whether a gateway can read it, its metrics tell."
        ),
    ),
]


class ModelIn(In):
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$",
        examples=["smollm2-135m-instruct"],
        description="What clients send as `model`.",
    )
    display_name: Text = ""
    context_limit: _Tokens = Field(examples=[8192], description="Tokens of input and output together.")
    max_output_tokens: _Tokens = Field(examples=[4096], description="Most output tokens of one choice.")
    default_output_tokens: _Tokens = Field(examples=[512], description="Where a client names no maximum.")
    tokenizer: _Path | None = None


class ModelPatch(Patch):
    nullable: ClassVar[frozenset[str]] = frozenset({"tokenizer"})

    display_name: Text | None = None
    context_limit: _Tokens | None = None
    max_output_tokens: _Tokens | None = None
    default_output_tokens: _Tokens | None = None
    tokenizer: _Path | None = None
    status: Literal["retired"] | None = Field(
        None, description="Taken off offer; publish it to bring it back."
    )


class ModelOut(Out):
    id: str
    name: str
    display_name: str
    context_limit: int
    max_output_tokens: int
    default_output_tokens: int
    status: str
    created_at: datetime
    tokenizer: str | None = Field(description="Shown to the operator's people only.")


class DeploymentIn(In):
    model_id: str = Field(min_length=1, max_length=200, description="Id or name of the model.")
    policy: Literal["least_predicted_wait"] = "least_predicted_wait"


class DeploymentOut(Out):
    id: str
    model_id: str
    policy: str
    created_at: datetime


def _shown(model: Model, call: Call) -> ModelOut:
    """A model as the caller may see it: paths of the operator's machines are no business of tenants."""
    shown = ModelOut.model_validate(model)
    return shown if call.actor.is_staff else shown.model_copy(update={"tokenizer": None})


@api.post("/models", status_code=201, summary="Draft a model")
async def create_model(
    body: ModelIn, call: Annotated[Call, Depends(Writes(Scope.CATALOG_WRITE))]
) -> ModelOut:
    created = await models.create_model(call.connection, **body.model_dump(), trail=call.trail)
    return _shown(created, call)


@api.get("/models", summary="List models; tenants see what is published")
async def list_models(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.CATALOG_READ))]
) -> Page[ModelOut]:
    rows = await models.list_models(
        call.connection, drafts=call.actor.is_staff, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, lambda row: _shown(row, call))


@api.post("/models/{model:path}/publish", summary="Offer a model; every class of token must have a price")
async def publish_model(model: str, call: Annotated[Call, Depends(Writes(Scope.CATALOG_WRITE))]) -> ModelOut:
    published = await models.publish_model(call.connection, model, now=call.now, trail=call.trail)
    return _shown(published, call)


@api.get("/models/{model:path}", summary="Show a model, by id or name")
async def show_model(model: str, call: Annotated[Call, Depends(Reads(Scope.CATALOG_READ))]) -> ModelOut:
    found = await models.get_model(call.connection, model, drafts=call.actor.is_staff)
    return _shown(found, call)


@api.patch("/models/{model:path}", summary="Change a model's limits or retire it")
async def change_model(
    model: str, body: ModelPatch, call: Annotated[Call, Depends(Writes(Scope.CATALOG_WRITE))]
) -> ModelOut:
    changed = await models.change_model(call.connection, model, changes=body.changes(), trail=call.trail)
    return _shown(changed, call)


@api.post("/deployments", status_code=201, summary="Create the deployment of a model")
async def create_deployment(
    body: DeploymentIn, call: Annotated[Call, Depends(Writes(Scope.FLEET_WRITE))]
) -> DeploymentOut:
    created = await fleet.create_deployment(
        call.connection, body.model_id, policy=body.policy, trail=call.trail
    )
    return DeploymentOut.model_validate(created)


@api.get("/deployments", summary="List deployments")
async def list_deployments(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.FLEET_READ))]
) -> Page[DeploymentOut]:
    rows = await fleet.list_deployments(call.connection, after=paging.after, limit=paging.fetch)
    return paging.page(rows, DeploymentOut.model_validate)


@api.get("/deployments/{deployment_id}", summary="Show a deployment")
async def show_deployment(
    deployment_id: Identifier, call: Annotated[Call, Depends(Reads(Scope.FLEET_READ))]
) -> DeploymentOut:
    return DeploymentOut.model_validate(await fleet.get_deployment(call.connection, deployment_id))
