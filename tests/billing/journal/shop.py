"""A tenant that can buy: wallet, prices and model in a real database, and the records of its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.clock import ManualClock
from app.core.database import connect_engine
from app.core.ids import AllowanceId, IncarnationId, ModelId, PriceVersionId, RequestId, TenantId
from app.core.money import PICOS_PER_UNIT
from billing.journal.model import Admitted, Held, Settled, Used
from billing.ledger import proofs, service
from billing.ledger.model import Balance, GrantKind, Wallet
from billing.metering.model import Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.rating.model import Rates, bound, cost
from tests.database import Database

RATES = Rates(540_000, 180_000, 540_000, 2_160_000)
USAGE = Usage(input=700, input_cached=200, output=90, reasoning=10)
DEPOSIT = 1000 * PICOS_PER_UNIT
NOW_MS = 1_790_000_000_000

_PRICES = """
INSERT INTO price_book (id, name, currency, is_default) VALUES (:book, 'list', 'USD', true);
INSERT INTO price_version (id, price_book_id) VALUES (:version, :book);
INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens, status)
  VALUES (:model, 'small', 8192, 4096, 256, 'published');
INSERT INTO price (price_version_id, model_id, meter, micros_per_mtok) VALUES
  (:version, :model, 'input', 540000), (:version, :model, 'input_cached', 180000),
  (:version, :model, 'input_cache_write', 540000), (:version, :model, 'output', 2160000);
UPDATE price_version SET status = 'published', effective_from = 'epoch', published_at = 'epoch'
  WHERE id = :version
"""


@dataclass(frozen=True)
class Catalogue:
    """Pinned facts of every request of the tenant."""

    tenant_id: TenantId
    allowance_id: AllowanceId
    model_id: ModelId = field(default_factory=ids.model_id)
    version_id: PriceVersionId = field(default_factory=ids.price_version_id)

    def admitted(
        self,
        *,
        request_id: RequestId | None = None,
        at_ms: int = NOW_MS,
        input_bound: int = 1000,
        output_bound: int = 500,
        rates: Rates = RATES,
    ) -> Admitted:
        """An admission with its hold on the wallet."""
        hold = bound(input_tokens=input_bound, output_tokens=output_bound, rates=rates)
        return Admitted(
            request_id=request_id or ids.request_id(),
            at_ms=at_ms,
            tenant_id=self.tenant_id,
            project_id=ids.ProjectId("prj_one"),
            key_id=ids.KeyId("key_one"),
            model_id=self.model_id,
            model_name="small",
            deployment_id=ids.DeploymentId("dep_one"),
            endpoint="chat.completions",
            streamed=True,
            currency="USD",
            price_version_id=self.version_id,
            rates=rates,
            input_bound=input_bound,
            output_bound=output_bound,
            holds=(Held(self.allowance_id, hold),),
        )


def settled(
    admitted: Admitted,
    usage: Usage = USAGE,
    *,
    outcome: Outcome = Outcome.COMPLETED,
    source: UsageSource = UsageSource.ENGINE,
    **changes: Any,
) -> Settled:
    """The honest end of an admitted request; `changes` make it dishonest."""
    charged = billed(outcome, source, usage)
    price = cost(charged, admitted.rates)
    unknown = source is UsageSource.UNKNOWN
    values: dict[str, Any] = {
        "request_id": admitted.request_id,
        "at_ms": admitted.at_ms + 1500,
        "outcome": outcome,
        "usage_source": source,
        "usage": usage,
        "billed": charged,
        "unknown_bound": Usage(admitted.input_bound, output=admitted.output_bound) if unknown else None,
        "cost_picos": price,
        "used": tuple(Used(held.allowance_id, held.amount, price) for held in admitted.holds),
        "backend_id": ids.BackendId("bck_one"),
        "status": 200,
        "error_code": None,
        "finish_reason": "stop",
        "ttft_ms": 40,
        "duration_ms": 1500,
        "bytes_relayed": 4096,
        "flags": (),
        "attempts": ({"backend_id": "bck_one", "outcome": "completed"},),
    }
    return Settled(**{**values, **changes})


@dataclass(frozen=True)
class Shop:
    """A database in which a tenant has a wallet of `DEPOSIT`; `engine` is that of a running process."""

    database: Database
    owner: AsyncEngine
    engine: AsyncEngine
    wallet: Wallet
    catalogue: Catalogue
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS + 60_000))

    async def incarnation(self, *, lent: int = DEPOSIT // 100) -> IncarnationId:
        """A registered gateway process that has borrowed of the wallet."""
        fresh = ids.incarnation_id()
        lease = "INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES (:allowance, :id, :lent)"
        async with self.owner.begin() as connection:
            await connection.execute(
                text("INSERT INTO incarnation (id, host) VALUES (:id, 'here')"), {"id": fresh}
            )
            await connection.execute(
                text(lease), {"allowance": self.wallet.allowance_id, "id": fresh, "lent": lent}
            )
        return fresh

    async def rows(self, query: str, **values: object) -> list[Any]:
        """The rows of a query; one column: its values."""
        async with self.owner.connect() as connection:
            rows = (await connection.execute(text(query), values)).all()
        return [row[0] if len(row) == 1 else tuple(row) for row in rows]

    async def events(self, incarnation_id: IncarnationId) -> dict[str, tuple[str, int]]:
        """(outcome, cost) by request of an incarnation."""
        query = "SELECT request_id, outcome, cost FROM usage_event WHERE incarnation_id = :id"
        return {
            request: (outcome, int(price))
            for request, outcome, price in await self.rows(query, id=incarnation_id)
        }

    async def outstanding(self, incarnation_id: IncarnationId) -> int:
        query = "SELECT coalesce(sum(granted - settled - returned), 0) FROM lease WHERE incarnation_id = :id"
        return int((await self.rows(query, id=incarnation_id))[0])

    async def balance(self) -> Balance:
        async with self.engine.begin() as connection:
            return await service.balance(connection, self.wallet.id)

    async def assert_the_books_agree(self) -> None:
        """Law 5: events = roll-ups = ledger = balances, and every transaction sums to zero."""
        async with self.engine.begin() as connection:
            assert await service.trial_balance(connection) == {"USD": 0}
            assert await proofs.drifts(connection) == []
        totals = "coalesce(sum(cost), 0), coalesce(sum(output), 0), coalesce(sum(billed_input), 0)"
        events = await self.rows(f"SELECT count(*), {totals} FROM usage_event")
        assert events == await self.rows(f"SELECT coalesce(sum(requests), 0), {totals} FROM usage_rollup")
        posted = "SELECT transaction_id, sum(cost) FROM usage_event WHERE cost > 0 GROUP BY 1 ORDER BY 1"
        entries = (
            "SELECT n.transaction_id, n.amount FROM ledger_entry n "
            "JOIN ledger_account a ON a.id = n.account_id WHERE a.kind = 'revenue' ORDER BY 1"
        )
        assert await self.rows(posted) == await self.rows(entries)


@asynccontextmanager
async def open_shop(database: Database) -> AsyncIterator[Shop]:
    """A shop in a fresh database."""
    owner, engine = connect_engine(database.owner_url), connect_engine(database.app_url)
    try:
        tenant_id = ids.tenant_id()
        async with owner.begin() as connection:
            await connection.execute(
                text("INSERT INTO tenant (id, name, currency) VALUES (:id, 'Acme', 'USD')"), {"id": tenant_id}
            )
        async with engine.begin() as connection:
            wallet = await service.open_wallet(connection, tenant_id=tenant_id, currency="USD")
            await service.grant(
                connection,
                wallet_id=wallet.id,
                amount=DEPOSIT,
                kind=GrantKind.PURCHASED,
                reason="top-up",
                reference="first",
                created_by="mem_one",
            )
        catalogue = Catalogue(tenant_id, wallet.allowance_id)
        named = {"book": "pbk_one", "version": catalogue.version_id, "model": catalogue.model_id}
        async with owner.begin() as connection:
            for statement in _PRICES.split(";"):
                wanted = {name: value for name, value in named.items() if f":{name}" in statement}
                await connection.execute(text(statement), wanted)
        yield Shop(database, owner, engine, wallet, catalogue)
    finally:
        await owner.dispose()
        await engine.dispose()
