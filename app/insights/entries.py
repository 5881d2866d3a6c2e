"""The ledger as a wallet's owner reads it: entries on the wallet's account, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import TenantId
from billing.ledger.model import AccountKind
from billing.ledger.tables import ledger_account, ledger_entry, ledger_transaction


@dataclass(frozen=True)
class Entry:
    """One leg of a transaction.   id: the transaction's.   amount: picos; positive credits the account."""

    id: str
    kind: str
    ref_type: str
    ref_id: str
    at: datetime
    account: AccountKind
    amount: int
    currency: str


_ENTRY = (
    select(
        ledger_transaction.c.id,
        ledger_transaction.c.kind,
        ledger_transaction.c.ref_type,
        ledger_transaction.c.ref_id,
        ledger_transaction.c.at,
        ledger_account.c.kind.label("account"),
        ledger_entry.c.amount,
        ledger_account.c.currency,
    )
    .select_from(ledger_entry)
    .join(ledger_transaction, ledger_transaction.c.id == ledger_entry.c.transaction_id)
    .join(ledger_account, ledger_account.c.id == ledger_entry.c.account_id)
)


async def list_wallet_entries(
    connection: AsyncConnection, tenant_id: TenantId, *, before: str | None, limit: int
) -> list[Entry]:
    """Entries on the tenant's wallet account, newest first, older than a given transaction."""
    query = _ENTRY.where(ledger_account.c.tenant_id == tenant_id, ledger_account.c.kind == AccountKind.WALLET)
    if before is not None:
        query = query.where(ledger_entry.c.transaction_id < before)
    query = query.order_by(ledger_entry.c.transaction_id.desc()).limit(limit)
    return [_entry(row._mapping) for row in await connection.execute(query)]


async def list_transaction_entries(connection: AsyncConnection, transaction_id: str) -> list[Entry]:
    """All legs of one transaction; they sum to zero."""
    query = _ENTRY.where(ledger_entry.c.transaction_id == transaction_id).order_by(ledger_account.c.kind)
    return [_entry(row._mapping) for row in await connection.execute(query)]


def _entry(row: object) -> Entry:
    facts = dict(row)  # type: ignore[call-overload]
    return Entry(**{**facts, "account": AccountKind(facts["account"])})
