"""Proofs that the ledger, the usage events and the allowances tell the same balances."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import WalletId
from billing.ledger.model import Drift

_DRIFTS = text("""
SELECT w.id, w.currency, told.*
FROM wallet w JOIN allowance a ON a.id = w.allowance_id
CROSS JOIN LATERAL (SELECT
  coalesce((SELECT sum(m.amount) FROM wallet_move m WHERE m.wallet_id = w.id), 0)
    - coalesce((SELECT sum(e.cost) FROM usage_event e
                WHERE e.tenant_id = w.tenant_id AND e.currency = w.currency), 0) AS by_grants_and_events,
  coalesce((SELECT sum(n.amount) FROM ledger_entry n JOIN ledger_account c ON c.id = n.account_id
            WHERE c.tenant_id = w.tenant_id AND c.kind = 'wallet' AND c.currency = w.currency), 0)
    AS by_ledger,
  a.limit_amount - w.credit_limit - a.spent AS by_allowance) told
WHERE told.by_grants_and_events <> told.by_ledger OR told.by_ledger <> told.by_allowance
ORDER BY w.id
""")


async def drifts(connection: AsyncConnection) -> list[Drift]:
    """Wallets whose balance differs when rebuilt from grants, events and entries: none, if all is well."""
    rows = await connection.execute(_DRIFTS)
    return [
        Drift(WalletId(wallet_id), currency, int(events), int(ledger), int(allowance))
        for wallet_id, currency, events, ledger, allowance in rows
    ]
