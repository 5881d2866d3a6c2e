"""Tenants that buy: wallets, prices and models in a real database, and the records of their requests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.core import ids
from app.core.ids import AllowanceId, IncarnationId, KeyId, ModelId, PriceVersionId, ProjectId, TenantId
from app.core.money import PICOS_PER_UNIT
from billing.journal.model import Admitted, Held, Settled, Used
from billing.ledger import service
from billing.ledger.model import GrantKind
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.rating.model import Rates, bound, cost

_DEPOSIT = 10_000_000 * PICOS_PER_UNIT
_MODELS_PER_KEY = 2
_OUTCOMES = (Outcome.COMPLETED,) * 18 + (Outcome.CLIENT_CANCELLED, Outcome.ENGINE_FAILED)
_ENDPOINTS = ("chat.completions", "completions", "embeddings")
_METERS = ("input", "input_cached", "input_cache_write", "output")


class Buyer(msgspec.Struct, frozen=True):
    """A key of a tenant."""

    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    allowance_id: AllowanceId


class Market(msgspec.Struct, frozen=True):
    """Who buys what: read by the writers' process."""

    buyers: tuple[Buyer, ...]
    models: tuple[tuple[ModelId, Rates], ...]
    version_id: PriceVersionId
    incarnations: tuple[IncarnationId, ...]

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(path: Path) -> Market:
        return msgspec.json.decode(path.read_bytes(), type=Market)


@dataclass(frozen=True)
class Size:
    """How large a market is."""

    tenants: int = 50
    keys_per_tenant: int = 4
    models: int = 6
    incarnations: int = 4


async def open_market(engine: AsyncEngine, owner: AsyncEngine, *, size: Size) -> Market:
    """A market in a fresh database; its incarnations hold leases that cover whatever they will use."""
    async with owner.begin() as connection:
        version_id, models = await _price_list(connection, models=size.models)
    buyers: list[Buyer] = []
    for number in range(size.tenants):
        tenant_id = ids.tenant_id()
        async with owner.begin() as connection:
            await connection.execute(
                text("INSERT INTO tenant (id, name, currency) VALUES (:id, :name, 'USD')"),
                {"id": tenant_id, "name": f"Tenant {number}"},
            )
        async with engine.begin() as connection:
            wallet = await service.open_wallet(connection, tenant_id=tenant_id, currency="USD")
            await service.grant(
                connection,
                wallet_id=wallet.id,
                amount=_DEPOSIT,
                kind=GrantKind.PURCHASED,
                reason="bench",
                reference="bench",
                created_by="mem_bench",
            )
        project_id = ids.project_id()
        buyers += [
            Buyer(tenant_id, project_id, ids.key_id(), wallet.allowance_id)
            for _ in range(size.keys_per_tenant)
        ]
    incarnations = tuple(ids.incarnation_id() for _ in range(size.incarnations))
    await lend(owner, incarnations, allowances=sorted({buyer.allowance_id for buyer in buyers}))
    return Market(tuple(buyers), models, version_id, incarnations)


async def lend(
    owner: AsyncEngine, incarnations: tuple[IncarnationId, ...], *, allowances: list[AllowanceId]
) -> None:
    """Register incarnations, each with a large lease of each allowance."""
    async with owner.begin() as connection:
        for incarnation_id in incarnations:
            await connection.execute(
                text("INSERT INTO incarnation (id, host) VALUES (:id, 'bench')"), {"id": incarnation_id}
            )
            await connection.execute(
                text(
                    "INSERT INTO lease (allowance_id, incarnation_id, granted) "
                    "SELECT id, :incarnation, 1000000000000000 FROM unnest(CAST(:ids AS text[])) AS id"
                ),
                {"incarnation": incarnation_id, "ids": allowances},
            )


async def _price_list(
    connection: AsyncConnection, *, models: int
) -> tuple[PriceVersionId, tuple[tuple[ModelId, Rates], ...]]:
    book, version = ids.price_book_id(), ids.price_version_id()
    priced = tuple(
        (ids.model_id(), Rates(100_000 * n, 30_000 * n, 100_000 * n, 400_000 * n))
        for n in range(1, models + 1)
    )
    await connection.execute(
        text("INSERT INTO price_book (id, name, currency, is_default) VALUES (:book, 'list', 'USD', true)"),
        {"book": book},
    )
    await connection.execute(
        text("INSERT INTO price_version (id, price_book_id) VALUES (:version, :book)"),
        {"version": version, "book": book},
    )
    for number, (model_id, rates) in enumerate(priced):
        await connection.execute(
            text(
                "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens, "
                "status) VALUES (:id, :name, 8192, 4096, 256, 'published')"
            ),
            {"id": model_id, "name": f"model-{number}"},
        )
        for meter in _METERS:
            await connection.execute(
                text(
                    "INSERT INTO price (price_version_id, model_id, meter, micros_per_mtok) "
                    "VALUES (:version, :model, :meter, :price)"
                ),
                {"version": version, "model": model_id, "meter": meter, "price": getattr(rates, meter)},
            )
    await connection.execute(
        text(
            "UPDATE price_version SET status = 'published', effective_from = 'epoch', "
            "published_at = 'epoch' WHERE id = :version"
        ),
        {"version": version},
    )
    return version, priced


def admission(market: Market, *, at_ms: int, draw: random.Random) -> Admitted:
    """A request of some key for some model."""
    place = draw.randrange(len(market.buyers))
    buyer = market.buyers[place]
    number = (place + draw.randrange(_MODELS_PER_KEY)) % len(market.models)
    model_id, rates = market.models[number]
    input_bound, output_bound = draw.randrange(200, 6000), draw.choice((128, 512, 4096))
    hold = bound(input_tokens=input_bound, output_tokens=output_bound, rates=rates)
    return Admitted(
        request_id=ids.request_id(),
        at_ms=at_ms,
        tenant_id=buyer.tenant_id,
        project_id=buyer.project_id,
        key_id=buyer.key_id,
        model_id=model_id,
        model_name=f"model-{number}",
        deployment_id=ids.DeploymentId(f"dep_{number}"),
        endpoint=draw.choice(_ENDPOINTS),
        streamed=draw.random() < 0.7,
        currency="USD",
        price_version_id=market.version_id,
        rates=rates,
        input_bound=input_bound,
        output_bound=output_bound,
        holds=(Held(buyer.allowance_id, hold),),
    )


def settlement(admitted: Admitted, *, at_ms: int, draw: random.Random) -> Settled:
    """How that request ended, as a gateway records it."""
    outcome = draw.choice(_OUTCOMES)
    source = UsageSource.ENGINE if outcome is Outcome.COMPLETED else UsageSource.ENGINE_PARTIAL
    cached = draw.randrange(0, admitted.input_bound // 2)
    usage = Usage(
        input=admitted.input_bound - cached,
        input_cached=cached,
        output=draw.randrange(1, admitted.output_bound),
    )
    charged = billed(outcome, source, usage)
    price = cost(charged, admitted.rates)
    backend_id = ids.BackendId(f"bck_{draw.randrange(8)}")
    took_ms = max(1, at_ms - admitted.at_ms)
    attempt = {
        "backend_id": backend_id,
        "started_ms": admitted.at_ms + 1,
        "predicted_wait_ms": 35,
        "scores": {backend_id: 35.5, "bck_other": 41.25},
        "outcome": "delivered",
        "status": 200,
        "error_code": None,
        "first_byte_ms": 40,
        "duration_ms": took_ms,
    }
    return Settled(
        request_id=admitted.request_id,
        at_ms=at_ms,
        outcome=outcome,
        usage_source=source,
        usage=usage,
        billed=charged,
        unknown_bound=None,
        cost_picos=price,
        used=tuple(Used(held.allowance_id, held.amount, price) for held in admitted.holds),
        backend_id=backend_id,
        status=200,
        error_code=None if outcome is Outcome.COMPLETED else outcome.value,
        finish_reason="stop",
        ttft_ms=40,
        duration_ms=took_ms,
        bytes_relayed=usage.output * 240,
        flags=(),
        attempts=(attempt,),
    )
