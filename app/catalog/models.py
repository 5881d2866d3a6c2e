"""Models: drafted, published once every class of token has a price, retired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.model import Model
from app.catalog.tables import model
from app.core import ids
from app.core.ids import ModelId
from app.identity.audit import Trail
from app.identity.errors import invalid, not_found
from billing.pricing import service as pricing


async def create_model(
    connection: AsyncConnection,
    *,
    name: str,
    display_name: str = "",
    context_limit: int,
    max_output_tokens: int,
    default_output_tokens: int,
    tokenizer: str | None = None,
    trail: Trail,
) -> Model:
    """A new draft. Raises Rejected unless default ≤ maximum ≤ context."""
    _check_limits(context_limit, max_output_tokens, default=default_output_tokens)
    if ids.is_id(name, "mdl_"):
        invalid("A model's name can't have the form of an id.", param="name")
    values = {
        "id": ids.model_id(),
        "name": name,
        "display_name": display_name,
        "context_limit": context_limit,
        "max_output_tokens": max_output_tokens,
        "default_output_tokens": default_output_tokens,
        "tokenizer": tokenizer,
    }
    created = Model(
        **(await connection.execute(insert(model).values(values).returning(model))).one()._mapping
    )
    trail.note("model.create", created.id, after=asdict(created))
    return created


async def get_model(
    connection: AsyncConnection, id_or_name: str, *, drafts: bool = True, lock: bool = False
) -> Model:
    """The model with this id or name. Raises Rejected (404) if there is none.

    drafts: False for a caller who sees only what is published.
    """
    query = select(model).where((model.c.id == id_or_name) | (model.c.name == id_or_name))
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None or (not drafts and row.status != "published"):
        not_found("model", id_or_name)
    return Model(**row._mapping)


async def list_models(
    connection: AsyncConnection, *, drafts: bool = True, after: str | None, limit: int
) -> list[Model]:
    """Models in the order of their making, after a given one."""
    query = select(model).where(model.c.id > (after or "")).order_by(model.c.id).limit(limit)
    if not drafts:
        query = query.where(model.c.status == "published")
    return [Model(**row._mapping) for row in await connection.execute(query)]


async def list_offered(connection: AsyncConnection) -> list[ModelId]:
    """The ids of all published models."""
    rows = await connection.execute(select(model.c.id).where(model.c.status == "published"))
    return [ModelId(row.id) for row in rows]


async def resolve_models(connection: AsyncConnection, ids_or_names: set[str]) -> dict[str, ModelId]:
    """The ids behind ids or names; what is unknown is left out."""
    query = select(model.c.id, model.c.name).where(
        model.c.id.in_(ids_or_names) | model.c.name.in_(ids_or_names)
    )
    found: dict[str, ModelId] = {}
    for row in await connection.execute(query):
        found |= {row.id: row.id, row.name: row.id}
    return found


async def names_of(connection: AsyncConnection, model_ids: set[ModelId]) -> dict[str, str]:
    """The names of models by id."""
    query = select(model.c.id, model.c.name).where(model.c.id.in_(model_ids))
    return {row.id: row.name for row in await connection.execute(query)}


async def change_model(
    connection: AsyncConnection, id_or_name: str, *, changes: Mapping[str, Any], trail: Trail
) -> Model:
    """The model with other names, limits, tokenizer or status `retired`; publishing is `publish_model`."""
    before = await get_model(connection, id_or_name, lock=True)
    if not changes:
        return before
    _check_limits(
        changes.get("context_limit", before.context_limit),
        changes.get("max_output_tokens", before.max_output_tokens),
        default=changes.get("default_output_tokens", before.default_output_tokens),
    )
    return await _changed(connection, before, values=dict(changes), action="model.change", trail=trail)


async def publish_model(
    connection: AsyncConnection, id_or_name: str, *, now: datetime, trail: Trail
) -> Model:
    """The model, on offer. A second time changes nothing.

    Raises Rejected (`price_missing`) unless every default book prices all its classes.
    """
    found = await get_model(connection, id_or_name)
    await pricing.require_full_price(connection, found.id, now=now)
    before = await get_model(connection, found.id, lock=True)
    if before.status == "published":
        return before
    return await _changed(
        connection, before, values={"status": "published"}, action="model.publish", trail=trail
    )


async def _changed(
    connection: AsyncConnection, before: Model, *, values: dict[str, Any], action: str, trail: Trail
) -> Model:
    changed = update(model).where(model.c.id == before.id).values(values).returning(model)
    after = Model(**(await connection.execute(changed)).one()._mapping)
    trail.note(action, after.id, before=asdict(before), after=asdict(after))
    return after


def _check_limits(context: int, maximum: int, *, default: int) -> None:
    if not 0 < default <= maximum <= context:
        invalid("default_output_tokens ≤ max_output_tokens ≤ context_limit must hold.", param="context_limit")
