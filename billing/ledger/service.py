"""Wallets: opened once a tenant, filled by grants, emptied by usage, told by their allowance.

A wallet's allowance has `limit = Σ moves + credit_limit` and `spent = Σ posted usage`, so its balance is
`limit − credit_limit − spent`; the ledger says the same, and `proofs` proves it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import TenantId, WalletId
from billing.ledger.grants import (
    grant,
    grant_standing,
    list_closed_grants,
    list_grants,
    list_standing_grants,
)
from billing.ledger.model import Balance, Wallet
from billing.ledger.standing import Standing, standing_of
from billing.ledger.tables import ledger_account, ledger_entry, wallet
from billing.ledger.wallets import find_wallet, find_wallet_of, get_wallet, lock_wallet, read_story
from billing.quota import authority

__all__ = [
    "balance",
    "find_wallet",
    "find_wallet_of",
    "grant",
    "grant_standing",
    "list_closed_grants",
    "list_grants",
    "list_standing_grants",
    "open_wallet",
    "set_credit_limit",
    "standing",
    "trial_balance",
]


async def open_wallet(
    connection: AsyncConnection, *, tenant_id: TenantId, currency: str, credit_limit: int = 0
) -> Wallet:
    """A new, empty wallet with its allowance. Raises Conflict if the tenant has one."""
    if await find_wallet_of(connection, tenant_id) is not None:
        raise Conflict("the tenant has a wallet", tenant_id=tenant_id)
    allowance_id = await authority.create_allowance(
        connection,
        tenant_id=tenant_id,
        scope_kind="tenant",
        scope_id=tenant_id,
        what="picos",
        window_kind="balance",
        limit=credit_limit,
    )
    values = {
        "id": ids.wallet_id(),
        "tenant_id": tenant_id,
        "currency": currency,
        "credit_limit": credit_limit,
        "allowance_id": allowance_id,
    }
    statement = insert(wallet).values(values).on_conflict_do_nothing().returning(wallet)
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        raise Conflict("the tenant has a wallet", tenant_id=tenant_id)
    return Wallet(**row._mapping)


async def set_credit_limit(connection: AsyncConnection, wallet_id: WalletId, *, credit_limit: int) -> None:
    """Let a wallet go `credit_limit` picos below zero. Running requests end as they are."""
    if credit_limit < 0:
        raise ValueError("a credit limit is zero or more")
    before = await lock_wallet(connection, wallet_id)
    await connection.execute(update(wallet).where(wallet.c.id == wallet_id).values(credit_limit=credit_limit))
    if change := credit_limit - before.credit_limit:
        await authority.change_limit(connection, before.allowance_id, by=change)


async def balance(connection: AsyncConnection, wallet_id: WalletId) -> Balance:
    """What a wallet holds now; costs the same however long its story. Raises Rejected if there is none."""
    held_by = await get_wallet(connection, wallet_id)
    status = await authority.status(connection, held_by.allowance_id)
    return Balance(
        posted=status.limit - held_by.credit_limit - status.spent,
        held=status.outstanding,
        available=status.available,
        credit_limit=held_by.credit_limit,
        currency=held_by.currency,
    )


async def standing(connection: AsyncConnection, wallet_id: WalletId, *, now: datetime) -> Standing:
    """What a wallet holds, and where the money of each grant is. Raises Rejected if there is none."""
    story = await read_story(connection, wallet_id)
    return standing_of(story, now=now)


async def trial_balance(connection: AsyncConnection) -> dict[str, int]:
    """The sum of all entries by currency: zero each, or a law is broken."""
    query = (
        select(ledger_account.c.currency, func.sum(ledger_entry.c.amount))
        .join(ledger_account, ledger_account.c.id == ledger_entry.c.account_id)
        .group_by(ledger_account.c.currency)
    )
    return {currency: int(total) for currency, total in await connection.execute(query)}
