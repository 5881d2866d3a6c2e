"""What the database knows that a settlement is checked against: prices, wallets, allowances.

All of it stands for ever once it is there (a published version is frozen, a wallet keeps its currency
and its allowance), so what was found is remembered; what was not found is looked up again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import AllowanceId, ModelId, PriceVersionId, TenantId
from billing.journal.join import Charge
from billing.metering.model import Meter
from billing.metering.uses import COUNTED, used_of
from billing.rating.model import Rates, cost

MOST_ALLOWANCES = 200_000
"""Remembered; there is a new one for each period and task, so they are forgotten together now and then."""
_UNSETTLED = ("minute", "request")
"""Windows of limits that no settlement moves: rates tell the authority themselves, ceilings take nothing."""


class Priced(NamedTuple):
    """The published rates of a model in a price version."""

    rates: Rates
    currency: str


class Purse(NamedTuple):
    """What a tenant pays from."""

    allowance_id: AllowanceId
    currency: str


class Limited(NamedTuple):
    """Whose an allowance is, what it counts and over which time."""

    tenant_id: TenantId
    what: str
    window: str


_PRICES = text("""
SELECT p.price_version_id, p.model_id, b.currency, p.meter, p.micros_per_mtok
FROM price p JOIN price_version v ON v.id = p.price_version_id JOIN price_book b ON b.id = v.price_book_id
WHERE v.status = 'published' AND p.price_version_id = ANY (:versions)
  AND p.service_tier = 'standard' AND p.context_band = 0
""")
_PURSES = text("SELECT tenant_id, allowance_id, currency FROM wallet WHERE tenant_id = ANY (:tenants)")
_ALLOWANCES = text("SELECT id, tenant_id, what, window_kind FROM allowance WHERE id = ANY (:allowances)")


class Facts:
    """A memory of prices, wallets and allowances; `load` before asking."""

    def __init__(self) -> None:
        self.prices: dict[tuple[PriceVersionId, ModelId], Priced] = {}
        self.purses: dict[TenantId, Purse] = {}
        self.allowances: dict[AllowanceId, Limited] = {}

    async def load(self, connection: AsyncConnection, charges: Iterable[Charge]) -> None:
        """Look up whatever these charges refer to and is not known yet."""
        prices: set[tuple[PriceVersionId, ModelId]] = set()
        tenants: set[TenantId] = set()
        allowances: set[AllowanceId] = set()
        if len(self.allowances) > MOST_ALLOWANCES:
            self.allowances.clear()
        for charge in charges:
            admitted = charge.admitted
            if (admitted.price_version_id, admitted.model_id) not in self.prices:
                prices.add((admitted.price_version_id, admitted.model_id))
            if admitted.tenant_id not in self.purses:
                tenants.add(admitted.tenant_id)
            for held in admitted.holds:
                if held.allowance_id not in self.allowances:
                    allowances.add(held.allowance_id)
        if prices:
            await self._load_prices(connection, {version for version, _ in prices})
        if tenants:
            await self._load_purses(connection, tenants)
        if allowances:
            await self._load_allowances(connection, allowances)

    def flaw(self, charge: Charge) -> str | None:
        """Why a charge can't be posted as it is, or None. Re-rates it: nobody's arithmetic is trusted."""
        admitted, settled = charge.admitted, charge.settled
        priced = self.prices.get((admitted.price_version_id, admitted.model_id))
        if priced is None:
            return f"version {admitted.price_version_id} has no published price of {admitted.model_id}"
        if priced.rates != admitted.rates or priced.currency != admitted.currency:
            return f"the pinned rates are not those of version {admitted.price_version_id}"
        if settled.cost_picos != cost(settled.billed, admitted.rates):
            return f"the cost is not {cost(settled.billed, admitted.rates)} picos at the pinned rates"
        if len(admitted.holds) != len(settled.used):
            return "the settled holds are not those of the admission"
        for held, used in zip(admitted.holds, settled.used, strict=True):
            if (held.allowance_id, held.amount, held.what) != (used.allowance_id, used.held, used.what):
                return "the settled holds are not those of the admission"
        return self._flaw_of_holds(charge) or self._flaw_of_purse(charge)

    def purse_use(self, charge: Charge) -> tuple[int, int]:
        """(hold, overrun) of the tenant's wallet in picos."""
        purse = self.purses.get(charge.admitted.tenant_id)
        for used in charge.settled.used:
            if purse is not None and used.allowance_id == purse.allowance_id:
                return used.held, max(used.used - used.held, 0)
        return 0, 0

    def _flaw_of_holds(self, charge: Charge) -> str | None:
        settled = charge.settled
        for used in settled.used:
            limited = self.allowances.get(used.allowance_id)
            if limited is None or limited.tenant_id != charge.admitted.tenant_id:
                return f"{used.allowance_id} is no allowance of the tenant"
            if limited.what != used.what or used.what not in COUNTED or limited.window in _UNSETTLED:
                return f"{used.allowance_id} counts {limited.what} by {limited.window}, not {used.what}"
            if used.used != used_of(used.what, settled.billed, cost_picos=settled.cost_picos):
                return f"what {used.allowance_id} is charged is not what was used of it"
        return None

    def _flaw_of_purse(self, charge: Charge) -> str | None:
        if not charge.settled.cost_picos:
            return None
        purse = self.purses.get(charge.admitted.tenant_id)
        if purse is None:
            return "the tenant has no wallet"
        if purse.currency != charge.admitted.currency:
            return f"the wallet holds {purse.currency}, the cost is in {charge.admitted.currency}"
        for used in charge.settled.used:
            if used.allowance_id == purse.allowance_id:
                return None
        return "the wallet is not among the holds"

    async def _load_prices(self, connection: AsyncConnection, versions: Iterable[PriceVersionId]) -> None:
        prices: dict[tuple[str, str, str], dict[Meter, int]] = {}
        rows = await connection.execute(_PRICES, {"versions": sorted(versions)})
        for version, model, currency, meter, price in rows:
            prices.setdefault((version, model, currency), {})[Meter(meter)] = price
        for (version, model, currency), by_meter in prices.items():
            if len(by_meter) == len(Meter):
                key = PriceVersionId(version), ModelId(model)
                self.prices[key] = Priced(Rates.of(by_meter), currency)

    async def _load_purses(self, connection: AsyncConnection, tenants: Iterable[TenantId]) -> None:
        rows = await connection.execute(_PURSES, {"tenants": sorted(tenants)})
        self.purses |= {tenant: Purse(allowance, currency) for tenant, allowance, currency in rows}

    async def _load_allowances(self, connection: AsyncConnection, allowances: Iterable[AllowanceId]) -> None:
        rows = await connection.execute(_ALLOWANCES, {"allowances": sorted(allowances)})
        self.allowances |= {allowance: Limited(*facts) for allowance, *facts in rows}
