"""Metered traffic: tenants with projects, keys and models, and requests posted as the settler posts them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.core import ids
from app.core.clock import from_ms
from app.core.database import connect_engine
from app.core.ids import AllowanceId, IncarnationId
from billing.journal.facts import Facts
from billing.journal.join import Charge, Refusal
from billing.journal.model import Admitted, Held, Refused, Settled, Used, encode
from billing.journal.posting import Batch, Position, post, post_charges
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.metering.uses import used_of
from billing.rating.model import Rates, bound, cost
from tests.app.control.world import METERS, World

RATES = Rates(540_000, 180_000, 540_000, 2_160_000)
_PRICES = dict(zip(METERS, ("0.54", "0.18", "0.54", "2.16"), strict=True))
_MODELS = ("small", "large")


@dataclass(frozen=True)
class Payer:
    """A tenant with its keys.   keys: (project id, key id, secret)."""

    tenant_id: str
    currency: str
    allowance_id: AllowanceId
    price_version_id: str
    keys: list[tuple[str, str, str]]


@dataclass
class Traffic:
    """Who asks for what, and all that was posted of it."""

    world: World
    payers: list[Payer]
    models: dict[str, str]
    incarnation_id: IncarnationId
    posted: list[tuple[Admitted, Settled]] = field(default_factory=list)

    def admitted(self, *, payer: int = 0, key: int = 0, model: str = "small", at: datetime) -> Admitted:
        """An admission with its hold on the payer's wallet."""
        who = self.payers[payer]
        project_id, key_id, _ = who.keys[key]
        hold = bound(input_tokens=1000, output_tokens=500, rates=RATES)
        return Admitted(
            request_id=ids.request_id(),
            at_ms=round(at.timestamp() * 1000),
            tenant_id=ids.TenantId(who.tenant_id),
            project_id=ids.ProjectId(project_id),
            key_id=ids.KeyId(key_id),
            model_id=ids.ModelId(self.models[model]),
            model_name=model,
            deployment_id=ids.DeploymentId("dep_one"),
            endpoint="chat.completions",
            streamed=True,
            currency=who.currency,
            price_version_id=ids.PriceVersionId(who.price_version_id),
            rates=RATES,
            input_bound=1000,
            output_bound=500,
            holds=(Held(who.allowance_id, hold),),
        )

    async def post(self, requests: list[tuple[Admitted, Settled]]) -> None:
        """Post settled requests, in one transaction, as the settler does."""
        charges = [
            Charge(0, 0, admitted, settled, encode(admitted), encode(settled))
            for admitted, settled in requests
        ]
        facts = Facts()
        async with self.world.engine.begin() as connection:
            await facts.load(connection, charges)
            assert [facts.flaw(charge) for charge in charges] == [None] * len(charges)
            now = from_ms(self.world.clock.now_ms())
            await post_charges(connection, charges, incarnation_id=self.incarnation_id, facts=facts, now=now)
        self.posted += requests

    async def refuse(self, refused: Refused) -> None:
        entries = [Refusal(0, 0, refused, encode(refused))]
        async with self.world.engine.begin() as connection:
            batch = Batch(self.incarnation_id, entries, Position(0, 0))
            await post(connection, batch, facts=Facts(), now=from_ms(self.world.clock.now_ms()))


def settled(
    admitted: Admitted,
    usage: Usage,
    *,
    outcome: Outcome = Outcome.COMPLETED,
    source: UsageSource = UsageSource.ENGINE,
    attempts: tuple[dict[str, Any], ...] = (),
) -> Settled:
    """The end of an admitted request, billed by the published policy."""
    charged = billed(outcome, source, usage)
    price = cost(charged, admitted.rates)
    unknown = source is UsageSource.UNKNOWN
    return Settled(
        request_id=admitted.request_id,
        at_ms=admitted.at_ms + 1500,
        outcome=outcome,
        usage_source=source,
        usage=usage,
        billed=charged,
        unknown_bound=Usage(admitted.input_bound, output=admitted.output_bound) if unknown else None,
        cost_picos=price,
        used=tuple(
            Used(held.allowance_id, held.amount, used_of(held.what, charged, cost_picos=price), held.what)
            for held in admitted.holds
        ),
        backend_id=ids.BackendId("bck_one"),
        status=200,
        error_code=None,
        finish_reason="stop",
        ttft_ms=40,
        duration_ms=1500,
        bytes_relayed=4096,
        flags=(),
        attempts=attempts,
    )


async def open_traffic(world: World) -> Traffic:
    """Two payers in two currencies with two keys each (in two projects), two priced models, one gateway."""
    models = {}
    for name in _MODELS:
        limits = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}
        models[name] = (await world.made("/models", {"name": name, **limits}))["id"]
    payers = [await _payer(world, currency) for currency in ("USD", "EUR")]
    incarnation_id = ids.incarnation_id()
    owner = connect_engine(world.database.owner_url)
    async with owner.begin() as connection:
        born = text("INSERT INTO incarnation (id, host) VALUES (:id, 'here')")
        await connection.execute(born, {"id": incarnation_id})
        lent = text(
            "INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES (:allowance, :id, 1e12)"
        )
        for payer in payers:
            await connection.execute(lent, {"allowance": payer.allowance_id, "id": incarnation_id})
    await owner.dispose()
    return Traffic(world, payers, models, incarnation_id)


async def _payer(world: World, currency: str) -> Payer:
    book = await world.made("/price-books", {"name": currency, "currency": currency, "is_default": True})
    version = await world.made(f"/price-books/{book['id']}/versions")
    prices = [
        {"model": model, "meter": meter, "price": price}
        for model in _MODELS
        for meter, price in _PRICES.items()
    ]
    path = f"/api/v1/price-versions/{version['id']}"
    assert (await world.operator.put(f"{path}/prices", json={"prices": prices})).is_success
    await world.made(f"/price-versions/{version['id']}/publish")
    tenant = await world.made("/tenants", {"name": f"Payer {currency}", "currency": currency})
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    grant = {"amount": "10", "kind": "purchased", "reason": "order"}
    await world.made(f"/wallets/{wallet['id']}/grants", grant, **{"idempotency-key": wallet["id"]})
    keys = []
    for name in ("one", "two"):
        project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": name})
        key = await world.made(f"/projects/{project['id']}/keys", {"name": name})
        keys.append((project["id"], key["id"], key["key"]))
    query = text("SELECT allowance_id FROM wallet WHERE tenant_id = :id")
    async with world.engine.connect() as connection:
        allowance_id = (await connection.execute(query, {"id": tenant["id"]})).scalar_one()
    return Payer(tenant["id"], currency, allowance_id, version["id"], keys)
