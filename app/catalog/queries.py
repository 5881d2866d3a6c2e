"""Reads the data plane's catalogue from PostgreSQL with asyncpg. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg

from app.catalog.snapshot import Fleet, Key, Model, Tenant
from app.core.ids import (
    AllowanceId,
    BackendId,
    DeploymentId,
    KeyId,
    ModelId,
    PriceBookId,
    PriceVersionId,
    ProjectId,
    TenantId,
)
from billing.metering.model import Meter
from billing.rating.schedule import Schedule, Version, full_rates
from scheduler.registry.model import BackendSpec

Connection: TypeAlias = asyncpg.Connection

_KEYS = """
SELECT id, tenant_id, project_id, digest, scopes, models, expires_at, revoked_at FROM api_key
WHERE $1::text IS NULL OR id = $1
"""
_TENANTS = """
SELECT tenant.id, tenant.status, tenant.currency, tenant.price_book_id, wallet.allowance_id
FROM tenant LEFT JOIN wallet ON wallet.tenant_id = tenant.id
WHERE $1::text IS NULL OR tenant.id = $1
"""
_ARCHIVED = "SELECT id FROM project WHERE status = 'archived'"
_MODELS = """
SELECT model.id, name, context_limit, max_output_tokens, default_output_tokens, model.created_at,
       tokenizer, deployment.id AS deployment_id
FROM model JOIN deployment ON deployment.model_id = model.id WHERE model.status = 'published'
"""
_BACKENDS = """
SELECT id, deployment_id, base_url, engine, served_model, max_concurrent, weight, status
FROM backend WHERE status <> 'removed'
"""
_BOOKS = "SELECT id, currency FROM price_book WHERE is_default"
_VERSIONS = """
SELECT id, price_book_id, effective_from, effective_to FROM price_version
WHERE status = 'published' AND (effective_to IS NULL OR effective_to > now() - interval '1 day')
"""
_PRICES = """
SELECT price_version_id, model_id, meter, micros_per_mtok FROM price
WHERE service_tier = 'standard' AND context_band = 0 AND price_version_id = ANY($1::text[])
"""


async def load_keys(connection: Connection, key_id: KeyId | None = None) -> list[Key]:
    """All keys, or the one with this id if it exists; revoked ones too, so that they are named as such."""
    return [_key(row) for row in await connection.fetch(_KEYS, key_id)]


async def load_tenants(connection: Connection, tenant_id: TenantId | None = None) -> list[Tenant]:
    """All tenants with the allowance of their wallet, or the one with this id."""
    return [
        Tenant(
            tenant_id=TenantId(row["id"]),
            status=row["status"],
            currency=row["currency"],
            price_book_id=_optional_book(row["price_book_id"]),
            wallet_allowance_id=AllowanceId(row["allowance_id"]) if row["allowance_id"] else None,
        )
        for row in await connection.fetch(_TENANTS, tenant_id)
    ]


async def load_archived_projects(connection: Connection) -> list[ProjectId]:
    return [ProjectId(row["id"]) for row in await connection.fetch(_ARCHIVED)]


async def load_fleet(connection: Connection) -> Fleet:
    """Published models, backends and prices. Call it in one repeatable-read transaction."""
    return Fleet(
        models={row["name"]: _model(row) for row in await connection.fetch(_MODELS)},
        backends=tuple(_backend(row) for row in await connection.fetch(_BACKENDS)),
        schedule=await _load_schedule(connection),
        default_books={row["currency"]: PriceBookId(row["id"]) for row in await connection.fetch(_BOOKS)},
    )


async def _load_schedule(connection: Connection) -> Schedule:
    versions = await connection.fetch(_VERSIONS)
    prices: dict[str, list[tuple[ModelId, Meter, int]]] = {row["id"]: [] for row in versions}
    for row in await connection.fetch(_PRICES, list(prices)):
        priced = (ModelId(row["model_id"]), Meter(row["meter"]), row["micros_per_mtok"])
        prices[row["price_version_id"]].append(priced)
    return Schedule(
        Version(
            version_id=PriceVersionId(row["id"]),
            price_book_id=PriceBookId(row["price_book_id"]),
            from_ms=_required_ms(row["effective_from"]),
            to_ms=_ms(row["effective_to"]),
            rates=full_rates(prices[row["id"]]),
        )
        for row in versions
    )


def _key(row: Any) -> Key:
    return Key(
        key_id=KeyId(row["id"]),
        tenant_id=TenantId(row["tenant_id"]),
        project_id=ProjectId(row["project_id"]),
        digest=bytes(row["digest"]),
        scopes=frozenset(row["scopes"]),
        models=_optional_set(row["models"]),
        expires_ms=_ms(row["expires_at"]),
        revoked_ms=_ms(row["revoked_at"]),
    )


def _model(row: Any) -> Model:
    return Model(
        model_id=ModelId(row["id"]),
        name=row["name"],
        context_limit=row["context_limit"],
        max_output_tokens=row["max_output_tokens"],
        default_output_tokens=row["default_output_tokens"],
        created_ms=_required_ms(row["created_at"]),
        deployment_id=DeploymentId(row["deployment_id"]),
        tokenizer=row["tokenizer"],
    )


def _backend(row: Any) -> BackendSpec:
    return BackendSpec(
        backend_id=BackendId(row["id"]),
        deployment_id=DeploymentId(row["deployment_id"]),
        base_url=row["base_url"],
        engine=row["engine"],
        served_model=row["served_model"],
        max_concurrent=row["max_concurrent"],
        weight=max(row["weight"], 1),
        draining=row["status"] == "draining" or row["weight"] == 0,
    )


def _optional_set(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _optional_book(price_book_id: str | None) -> PriceBookId | None:
    return None if price_book_id is None else PriceBookId(price_book_id)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else _required_ms(moment)


def _required_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
