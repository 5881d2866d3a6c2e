"""Reads the data plane's catalogue from PostgreSQL with asyncpg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg

from app.catalog.limits import Limit, LimitState
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
from billing.quota.model import Rate
from billing.rating.schedule import Schedule, Version, full_rates
from scheduler.registry.model import BackendSpec

Connection: TypeAlias = asyncpg.Connection

_KEYS = "SELECT id, tenant_id, project_id, digest, scopes, models, expires_at, revoked_at FROM api_key"
_KEYS_NAMED = _KEYS + " WHERE id = ANY($1::text[])"
_TENANTS = """
SELECT tenant.id, tenant.status, tenant.currency, wallet.allowance_id, tenant.on_suspend,
  coalesce(tenant.price_book_id, (
    SELECT p.price_book_id FROM plan_assignment a JOIN plan p ON p.id = a.plan_id
    WHERE a.tenant_id = tenant.id AND a.effective_from <= now()
      AND (a.effective_to IS NULL OR a.effective_to > now())
  )) AS price_book_id
FROM tenant LEFT JOIN wallet ON wallet.tenant_id = tenant.id
WHERE $1::text[] IS NULL OR tenant.id = ANY($1)
"""
_PROJECTS = """
SELECT id, status = 'archived' AS archived, clamp_output FROM project
WHERE status = 'archived' OR clamp_output
"""
# A period that is just over is kept for a while: this machine's clock may be late.
_LIMITS = """
SELECT id, tenant_id, scope_kind, scope_id, model_id, what, window_kind, limit_amount, burst, period_start,
  period_end, limit_source
FROM allowance
WHERE limit_source IS NOT NULL AND ended_at IS NULL
  AND coalesce(period_end, 'infinity') > now() - interval '1 hour'
"""
_LIMITS_OF_TENANTS = _LIMITS + "AND tenant_id = ANY($1::text[])"
_LIMITS_OF_SCOPES = _LIMITS + "AND (tenant_id, scope_id) IN (SELECT * FROM unnest($1::text[], $2::text[]))"  # noqa: S608
_STATES = """
SELECT tenant_id, version, (extract(epoch FROM next_change_at - clock_timestamp()) * 1000)::bigint AS in_ms
FROM tenant_limits WHERE $1::text[] IS NULL OR tenant_id = ANY($1)
"""
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


async def load_keys(connection: Connection, key_ids: Sequence[KeyId] | None = None) -> list[Key]:
    """All keys, or those of these ids that exist; revoked ones too, so that they are named as such."""
    rows = connection.fetch(_KEYS) if key_ids is None else connection.fetch(_KEYS_NAMED, key_ids)
    return [_key(row) for row in await rows]


async def load_tenants(connection: Connection, tenant_ids: Sequence[TenantId] | None = None) -> list[Tenant]:
    """All tenants with the allowance of their wallet, or those with these ids."""
    return [
        Tenant(
            tenant_id=TenantId(row["id"]),
            status=row["status"],
            currency=row["currency"],
            price_book_id=_optional_book(row["price_book_id"]),
            wallet_allowance_id=AllowanceId(row["allowance_id"]) if row["allowance_id"] else None,
            on_suspend=row["on_suspend"],
        )
        for row in await connection.fetch(_TENANTS, tenant_ids)
    ]


async def load_projects(connection: Connection) -> tuple[list[ProjectId], list[ProjectId]]:
    """The projects that are archived, and those that clamp output."""
    rows = await connection.fetch(_PROJECTS)
    archived = [ProjectId(row["id"]) for row in rows if row["archived"]]
    return archived, [ProjectId(row["id"]) for row in rows if row["clamp_output"]]


async def load_limits(connection: Connection, tenant_ids: Sequence[TenantId]) -> dict[TenantId, list[Limit]]:
    """The limits of these tenants: of this period, and of those that are opened ahead."""
    found: dict[TenantId, list[Limit]] = {each: [] for each in tenant_ids}
    for row in await connection.fetch(_LIMITS_OF_TENANTS, tenant_ids):
        found[TenantId(row["tenant_id"])].append(_limit(row))
    return found


async def load_limits_of_scopes(
    connection: Connection, scopes: Sequence[tuple[TenantId, str]]
) -> dict[tuple[TenantId, str], list[Limit]]:
    """As `load_limits`, of these tenants' scopes alone: a project or a key."""
    found: dict[tuple[TenantId, str], list[Limit]] = {scope: [] for scope in scopes}
    tenants, ids = [each[0] for each in scopes], [each[1] for each in scopes]
    for row in await connection.fetch(_LIMITS_OF_SCOPES, tenants, ids):
        found[TenantId(row["tenant_id"]), row["scope_id"]].append(_limit(row))
    return found


async def load_limit_states(
    connection: Connection, tenant_ids: Sequence[TenantId] | None = None
) -> dict[TenantId, LimitState]:
    """Which version of their limits tenants have, and when it changes by itself; of all, or of these."""
    return {
        TenantId(row["tenant_id"]): LimitState(row["version"], row["in_ms"])
        for row in await connection.fetch(_STATES, tenant_ids)
    }


async def resolve_due(connection: Connection, *, most: int) -> int:
    """Bring limits that change by now up to date, if nobody is at it. Returns of how many tenants.

    The one thing that is written here: whoever sees it first does it, so that no worker is needed for it.
    """
    return int(await connection.fetchval("SELECT quota_resolve_due($1)", most))


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


def _limit(row: Any) -> Limit:
    amount, burst = int(row["limit_amount"]), None if row["burst"] is None else int(row["burst"])
    return Limit(
        allowance_id=AllowanceId(row["id"]),
        scope_kind=row["scope_kind"],
        scope_id=row["scope_id"],
        model_id=None if row["model_id"] is None else ModelId(row["model_id"]),
        what=row["what"],
        window=row["window_kind"],
        amount=amount,
        burst=burst,
        start_ms=_ms(row["period_start"]),
        end_ms=_ms(row["period_end"]),
        source=row["limit_source"],
        rate=None if burst is None else Rate(amount, burst),
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
