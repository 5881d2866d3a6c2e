"""The engines of the catalogue as reconciliation knows them."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.tables import backend, deployment, model
from app.core.ids import BackendId, DeploymentId, ModelId
from billing.reconcile.model import Engine


async def list_engines(connection: AsyncConnection, *, removed: bool) -> list[Engine]:
    """Every backend with its model; `removed`: also those that were taken out."""
    query = (
        select(
            backend.c.id,
            backend.c.deployment_id,
            model.c.id.label("model_id"),
            model.c.name.label("model_name"),
            backend.c.engine,
            backend.c.base_url,
            backend.c.served_model,
            backend.c.status,
        )
        .join(deployment, deployment.c.id == backend.c.deployment_id)
        .join(model, model.c.id == deployment.c.model_id)
        .order_by(backend.c.id)
    )
    if not removed:
        query = query.where(backend.c.status != "removed")
    return [
        Engine(
            BackendId(row.id),
            DeploymentId(row.deployment_id),
            ModelId(row.model_id),
            row.model_name,
            row.engine,
            row.base_url,
            row.served_model,
            row.status == "removed",
        )
        for row in await connection.execute(query)
    ]
