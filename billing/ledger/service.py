"""Wallets: opened once a tenant, filled by grants, emptied by usage, told by their allowance.

A wallet's allowance has `limit = Σ grants + credit_limit` and `spent = Σ posted usage`, so its balance
is `limit − credit_limit − spent`; the ledger says the same, and `proofs` proves it.
"""

from __future__ import annotations

from sqlalchemy import RowMapping, Select, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import TenantId, WalletId
from billing.ledger import posting
from billing.ledger.model import (
    AccountKind,
    Balance,
    Grant,
    GrantKind,
    Reference,
    Transaction,
    Wallet,
)
from billing.ledger.tables import ledger_account, ledger_entry, wallet, wallet_grant
from billing.quota import authority

_WALLET = select(wallet)


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


async def find_wallet(connection: AsyncConnection, wallet_id: WalletId) -> Wallet | None:
    return await _find(connection, _WALLET.where(wallet.c.id == wallet_id))


async def find_wallet_of(connection: AsyncConnection, tenant_id: TenantId) -> Wallet | None:
    """The wallet of a tenant, if it has one."""
    return await _find(connection, _WALLET.where(wallet.c.tenant_id == tenant_id))


async def grant(
    connection: AsyncConnection,
    *,
    wallet_id: WalletId,
    amount: int,
    kind: GrantKind | str,
    reason: str,
    reference: str,
    created_by: str,
) -> Grant:
    """Put `amount` picos into a wallet. The same reference again returns the first grant.

    Raises Conflict if that one had another kind or amount, Rejected if there is no such wallet.
    """
    if amount <= 0:
        raise ValueError("a grant is more than nothing")
    kind = GrantKind(kind)
    into = await _get(connection, wallet_id)
    at = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    ref = Reference(kind="grant", ref_type="wallet", ref_id=f"{wallet_id}:{reference}")
    transaction = Transaction(
        id=ids.transaction_id(),
        reference=ref,
        tenant_id=into.tenant_id,
        currency=into.currency,
        at=at,
        entries={AccountKind.WALLET: amount, kind.source: -amount},
    )
    stands = await posting.post(connection, [transaction])
    if stands[ref.ref_id] != transaction.id:
        return await _granted(connection, wallet_id, reference=reference)
    await authority.change_limit(connection, into.allowance_id, by=amount)
    values = {
        "id": ids.grant_id(),
        "wallet_id": wallet_id,
        "kind": kind.value,
        "amount": amount,
        "reason": reason,
        "reference": reference,
        "transaction_id": transaction.id,
        "created_by": created_by,
        "created_at": at,
    }
    row = (await connection.execute(insert(wallet_grant).values(values).returning(wallet_grant))).one()
    return _as_grant(row._mapping)


async def list_grants(
    connection: AsyncConnection, wallet_id: WalletId, *, after: str | None, limit: int
) -> list[Grant]:
    """Grants of a wallet in the order of their making, after a given one."""
    at = wallet_grant.c
    query = select(wallet_grant).where(at.wallet_id == wallet_id, at.id > (after or "")).order_by(at.id)
    return [_as_grant(row._mapping) for row in await connection.execute(query.limit(limit))]


async def set_credit_limit(connection: AsyncConnection, wallet_id: WalletId, *, credit_limit: int) -> None:
    """Let a wallet go `credit_limit` picos below zero. Running requests end as they are."""
    if credit_limit < 0:
        raise ValueError("a credit limit is zero or more")
    before = await _get(connection, wallet_id, lock=True)
    await connection.execute(update(wallet).where(wallet.c.id == wallet_id).values(credit_limit=credit_limit))
    if change := credit_limit - before.credit_limit:
        await authority.change_limit(connection, before.allowance_id, by=change)


async def balance(connection: AsyncConnection, wallet_id: WalletId) -> Balance:
    """What a wallet holds now. Raises Rejected if there is none."""
    held_by = await _get(connection, wallet_id)
    status = await authority.status(connection, held_by.allowance_id)
    return Balance(
        posted=status.limit - held_by.credit_limit - status.spent,
        held=status.outstanding,
        available=status.available,
        credit_limit=held_by.credit_limit,
        currency=held_by.currency,
    )


async def trial_balance(connection: AsyncConnection) -> dict[str, int]:
    """The sum of all entries by currency: zero each, or a law is broken."""
    query = (
        select(ledger_account.c.currency, func.sum(ledger_entry.c.amount))
        .join(ledger_account, ledger_account.c.id == ledger_entry.c.account_id)
        .group_by(ledger_account.c.currency)
    )
    return {currency: int(total) for currency, total in await connection.execute(query)}


async def _find(connection: AsyncConnection, query: Select[*tuple[object, ...]]) -> Wallet | None:
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else Wallet(**row._mapping)


async def _get(connection: AsyncConnection, wallet_id: WalletId, *, lock: bool = False) -> Wallet:
    """The wallet, locked against changes of its terms (or for one, with `lock`)."""
    found = await _find(connection, _WALLET.where(wallet.c.id == wallet_id).with_for_update(read=not lock))
    if found is None:
        raise Rejected(RejectReason.NOT_FOUND, "there is no such wallet", status=404, wallet_id=wallet_id)
    return found


async def _granted(connection: AsyncConnection, wallet_id: WalletId, *, reference: str) -> Grant:
    at = wallet_grant.c
    query = select(wallet_grant).where(at.wallet_id == wallet_id, at.reference == reference)
    return _as_grant((await connection.execute(query)).one()._mapping)


def _as_grant(row: RowMapping) -> Grant:
    return Grant(**{**row, "kind": GrantKind(row["kind"])})
