"""Who is there and what it costs: tenants, keys, wallets, a model, engines, and prices that change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.clock import from_ms
from app.core.ids import ModelId, PriceBookId, RequestId, TenantId, WalletId
from billing.ledger import corrections
from billing.ledger import service as ledger
from billing.ledger.grants import AT_ONCE
from billing.ledger.model import BilledTokens, Terms
from billing.metering.model import Meter
from billing.pricing import service as pricing
from billing.pricing.model import Price
from tests.simulation.arena import EPOCH_MS, Arena
from tests.simulation.plan import MODEL, SECRETS, Plan

PRICES = {
    Meter.INPUT: 540_000,
    Meter.INPUT_CACHED: 180_000,
    Meter.INPUT_CACHE_WRITE: 540_000,
    Meter.OUTPUT: 2_160_000,
}


@dataclass
class Payer:
    """A tenant of the run.   most_credit: the furthest below zero that its wallet was ever allowed.

    scopes: the ids of itself, its project and its key, by kind.
    """

    tenant_id: TenantId
    secret: str
    credit: int
    wallet_id: WalletId | None = None
    allowance_id: str = ""
    most_credit: int = 0
    scopes: dict[str, str] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)


class Catalogue:
    """The rows of a run, and the operations on them."""

    def __init__(self, plan: Plan, arena: Arena, *, now: Callable[[], datetime]) -> None:
        self._plan = plan
        self._arena = arena
        self._now = now
        self._changes = 0
        self.corrected: dict[str, int] = {}
        self.payers: list[Payer] = []
        self.model_id = ModelId("")
        self.book_id = PriceBookId("")

    def fill(self) -> None:
        """Insert everything but wallets, straight into the tables."""
        insert = self._arena.insert
        self._arena.set_clock(0.0)
        self.book_id, self.model_id, deployment_id = ids.price_book_id(), ids.model_id(), ids.deployment_id()
        insert("price_book", id=self.book_id, name="list", currency="USD", is_default=True)
        for secret, credit in zip(SECRETS, self._plan.credits, strict=False):
            payer = Payer(ids.tenant_id(), secret, credit, most_credit=credit)
            self.payers.append(payer)
            self._insert_tenant(payer)
        insert(
            "model",
            id=self.model_id,
            name=MODEL,
            context_limit=4096,
            max_output_tokens=64,
            default_output_tokens=8,
            status="published",
        )
        insert("deployment", id=deployment_id, model_id=self.model_id)
        for kind in self._plan.engines:
            backend_id = ids.backend_id()
            insert(
                "backend",
                id=backend_id,
                deployment_id=deployment_id,
                base_url=f"http://{backend_id}.test:8000",
                engine=kind,
                served_model=MODEL,
            )
        self._insert_prices()

    def _insert_tenant(self, payer: Payer) -> None:
        insert, project_id, key_id = self._arena.insert, ids.project_id(), ids.key_id()
        payer.scopes = {"tenant": payer.tenant_id, "project": project_id, "key": key_id}
        insert("tenant", id=payer.tenant_id, name=f"tenant {len(self.payers)}", currency="USD")
        insert("project", id=project_id, tenant_id=payer.tenant_id, name="p")
        insert(
            "api_key",
            id=key_id,
            tenant_id=payer.tenant_id,
            project_id=project_id,
            name="k",
            digest=hashlib.sha256(payer.secret.encode()).digest(),
            prefix=payer.secret[:10],
            last_four=payer.secret[-4:],
        )

    def _insert_prices(self) -> None:
        insert, version_id = self._arena.insert, ids.price_version_id()
        insert("price_version", id=version_id, price_book_id=self.book_id, status="draft")
        for meter, price in PRICES.items():
            insert(
                "price",
                price_version_id=version_id,
                model_id=self.model_id,
                meter=meter.value,
                micros_per_mtok=price,
            )
        since = (from_ms(EPOCH_MS) - timedelta(days=400)).isoformat()
        self._arena.flush(
            f"UPDATE price_version SET status = 'published', published_at = '{since}',"
            f" effective_from = '{since}' WHERE id = '{version_id}'"
        )

    # What operators do. Each may be done twice: its process died before it knew.

    async def open_wallets(self, connection: AsyncConnection) -> None:
        for payer in self.payers:
            wallet = await ledger.open_wallet(
                connection, tenant_id=payer.tenant_id, currency="USD", credit_limit=payer.credit
            )
            payer.wallet_id, payer.allowance_id = wallet.id, wallet.allowance_id

    async def set_limit(self, connection: AsyncConnection, *, which: int, amount: int) -> None:
        payer = self.payers[which % len(self.payers)]
        assert payer.wallet_id is not None
        credit = max(payer.credit + amount, 0)
        payer.most_credit = max(payer.most_credit, credit)
        await ledger.set_credit_limit(connection, payer.wallet_id, credit_limit=credit)

    async def grant(
        self,
        connection: AsyncConnection,
        *,
        which: int,
        amount: int,
        reference: str,
        terms: Terms = AT_ONCE,
    ) -> None:
        payer = self.payers[which % len(self.payers)]
        assert payer.wallet_id is not None
        payer.granted.pop(reference, None)  # one that has ended before a second try came is refused
        await ledger.grant(
            connection,
            wallet_id=payer.wallet_id,
            amount=abs(amount),
            kind="purchased" if amount > 0 else "promo",
            reason="simulated",
            reference=reference,
            created_by="simulation",
            terms=terms,
        )
        payer.granted[reference] = abs(amount)

    async def correct(
        self, connection: AsyncConnection, *, request_id: str, charges: bool, reference: str
    ) -> None:
        """Charge a token more, or give a third of an event's cost back; refused if that is too much."""
        query = text("SELECT cost FROM usage_event WHERE request_id = :id")
        cost = int((await connection.execute(query, {"id": request_id})).scalar_one())
        asked = corrections.Asked(
            request_id=RequestId(request_id),
            reason="simulated",
            reference=reference,
            created_by="simulation",
            amount=None if charges else cost // 3 or 1,
            tokens=BilledTokens(billed_output=int(charges)),
        )
        self.corrected.pop(reference, None)
        made = await corrections.correct(connection, asked, now=self._now())
        self.corrected[made.reference] = made.amount

    async def change_prices(self, connection: AsyncConnection, *, now_ms: int, in_ms: int) -> None:
        self._changes += 1
        version = await pricing.create_version(connection, self.book_id)
        prices = [
            Price(self.model_id, meter, price + self._changes * 10_000) for meter, price in PRICES.items()
        ]
        await pricing.put_prices(connection, version.id, prices=prices)

        async def on_offer() -> list[ModelId]:
            return [self.model_id]

        await pricing.publish(
            connection,
            version.id,
            effective_from=from_ms(now_ms + in_ms) if in_ms else None,
            now=from_ms(now_ms),
            on_offer=on_offer,
        )
