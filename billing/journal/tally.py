"""What follows from new events, summed as they are encoded: roll-ups, ledger transactions, use of leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.clock import from_ms
from app.core.ids import AllowanceId, RequestId, TenantId, TransactionId
from billing.journal.join import Charge
from billing.ledger import posting as ledger
from billing.ledger.model import Reference, Transaction

_BUCKET_MS = 15 * 60 * 1000
_KEY = {
    "bucket": "timestamptz",
    **dict.fromkeys(
        ("tenant_id", "project_id", "key_id", "model_id", "price_version_id", "currency"), "text"
    ),
    "usage_source": "text",
}
_SUMS = {
    **dict.fromkeys(
        ("requests", "input", "input_cached", "input_cache_write", "output", "reasoning"), "bigint"
    ),
    **dict.fromkeys(("billed_input", "billed_input_cached", "billed_input_cache_write"), "bigint"),
    "billed_output": "bigint",
    "cost": "numeric",
}
_COLUMNS = ", ".join((*_KEY, *_SUMS))
_ARRAYS = ", ".join(
    f"CAST(:{name} AS {'text' if kind == 'numeric' else kind}[])" for name, kind in {**_KEY, **_SUMS}.items()
)
_VALUES = ", ".join(f"CAST({name} AS {kind})" for name, kind in {**_KEY, **_SUMS}.items())
_ROLL_UP = text(f"""
INSERT INTO usage_rollup ({_COLUMNS})
SELECT {_VALUES} FROM unnest({_ARRAYS}) AS t({_COLUMNS}) ORDER BY {", ".join(_KEY)}
ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
  {", ".join(f"{name} = usage_rollup.{name} + EXCLUDED.{name}" for name in _SUMS)}
""")  # noqa: S608

_Payer = tuple[TenantId, str]


class Tally:
    """The sums of a batch.   transactions: ids known before anything is posted, for events never change."""

    def __init__(self) -> None:
        self.events = 0
        self.cost = 0
        self._transactions: dict[_Payer, TransactionId] = {}
        self._rollups: dict[tuple[Any, ...], list[int]] = {}
        self._costs: dict[_Payer, tuple[int, RequestId]] = {}
        self._uses: dict[AllowanceId, tuple[int, int]] = {}

    def transaction_of(self, charge: Charge) -> TransactionId | None:
        """The ledger transaction that will carry a charge; None if it costs nothing."""
        if not charge.settled.cost_picos:
            return None
        payer = charge.admitted.tenant_id, charge.admitted.currency
        known = self._transactions.get(payer)
        if known is None:
            known = self._transactions[payer] = ids.transaction_id()
        return known

    def add(self, charge: Charge) -> None:
        """Count a new event, once."""
        admitted, settled = charge.admitted, charge.settled
        price = settled.cost_picos
        self.events += 1
        self.cost += price
        self._roll_up(charge)
        for used in settled.used:
            taken, spent = self._uses.get(used.allowance_id, (0, 0))
            self._uses[used.allowance_id] = taken + used.taken, spent + used.used
        if price:
            payer = admitted.tenant_id, admitted.currency
            total, first = self._costs.get(payer, (0, admitted.request_id))
            self._costs[payer] = total + price, min(first, admitted.request_id)

    async def roll_up(self, connection: AsyncConnection) -> None:
        """Add the sums to their quarters of an hour."""
        if not self._rollups:
            return
        rows = [(*key, *sums) for key, sums in self._rollups.items()]
        columns = dict(zip((*_KEY, *_SUMS), map(list, zip(*rows, strict=True)), strict=True))
        columns["bucket"] = [from_ms(bucket) for bucket in columns["bucket"]]
        columns["cost"] = [str(cost) for cost in columns["cost"]]
        await connection.execute(_ROLL_UP, columns)

    def transactions(self, *, now: datetime) -> list[Transaction]:
        """One for each payer; named by its first request, which no other batch can have."""
        return [
            Transaction(
                id=self._transactions[tenant_id, currency],
                reference=Reference("usage", "batch", first),
                tenant_id=tenant_id,
                currency=currency,
                at=now,
                entries=ledger.usage_entries(total),
            )
            for (tenant_id, currency), (total, first) in sorted(self._costs.items())
        ]

    @property
    def uses(self) -> list[tuple[AllowanceId, int, int]]:
        """(allowance, taken of the lease, spent) over all events."""
        return [(allowance_id, taken, spent) for allowance_id, (taken, spent) in self._uses.items()]

    def _roll_up(self, charge: Charge) -> None:
        admitted, settled = charge.admitted, charge.settled
        usage, billed = settled.usage, settled.billed
        key = (
            admitted.at_ms - admitted.at_ms % _BUCKET_MS,
            admitted.tenant_id,
            admitted.project_id,
            admitted.key_id,
            admitted.model_id,
            admitted.price_version_id,
            admitted.currency,
            settled.usage_source.value,
        )
        sums = self._rollups.get(key)
        if sums is None:
            sums = self._rollups[key] = [0] * len(_SUMS)
        sums[0] += 1
        sums[1] += usage.input
        sums[2] += usage.input_cached
        sums[3] += usage.input_cache_write
        sums[4] += usage.output
        sums[5] += usage.reasoning
        sums[6] += billed.input
        sums[7] += billed.input_cached
        sums[8] += billed.input_cache_write
        sums[9] += billed.output
        sums[10] += settled.cost_picos
