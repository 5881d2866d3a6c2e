"""Starts and expires grants at their time: idempotent, wallet by wallet, safe beside settlements and leases.

A grant that has expired while it is lent stays usable by what was lent: only the rest leaves, and whatever
comes back leaves at a later turn. Recall hastens that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import GrantId, WalletId
from billing.ledger import posting
from billing.ledger.burn import rank_of
from billing.ledger.model import AccountKind, Grant, MoveKind, Reference
from billing.ledger.purse import ACCOUNTS, Purse
from billing.ledger.tables import wallet_grant, wallet_move
from billing.ledger.wallets import as_grant, lock_wallet
from billing.quota import authority

_DUE = text("""
SELECT g.wallet_id FROM wallet_grant g WHERE g.starts_at <= :now AND NOT EXISTS (
  SELECT FROM wallet_move m WHERE m.grant_id = g.id AND m.kind = 'started')
UNION
SELECT g.wallet_id FROM wallet_grant g WHERE g.expires_at <= :now AND NOT EXISTS (
  SELECT FROM wallet_move m WHERE m.grant_id = g.id AND m.kind = 'ended')
ORDER BY 1
""")


class Turned(msgspec.Struct, frozen=True):
    """What one turn of a wallet did.   expired: picos.   lingering: expired grants with something lent."""

    started: int = 0
    expired: int = 0
    ended: int = 0
    lingering: int = 0


async def find_due(connection: AsyncConnection, *, now: datetime) -> list[WalletId]:
    """Wallets with a grant whose start or end has come and is not done."""
    return [WalletId(wallet_id) for wallet_id in (await connection.execute(_DUE, {"now": now})).scalars()]


async def turn(connection: AsyncConnection, wallet_id: WalletId, *, now: datetime) -> Turned:
    """Start and expire what is due of a wallet; again at the same time it does nothing more.

    now: a start at or before it has come, and so has an end. Raises Rejected (404).
    """
    turned = await lock_wallet(connection, wallet_id)
    waiting = await _waiting(connection, wallet_id, now=now)
    await posting.open_accounts(connection, turned.tenant_id, kinds=ACCOUNTS, currency=turned.currency)
    purse = await Purse.hold(connection, turned, at=now)
    for grant in waiting:
        await _start(purse, grant)
    moved = len(purse.moves)
    ended = [await purse.expire(grant) for grant in _expiring(purse, now=now)]
    await purse.release()
    lingering = len(ended) - sum(ended)
    if lingering:
        await authority.recall(connection, turned.allowance_id)
    expired = -sum(move.amount for move in purse.moves[moved:])
    return Turned(len(waiting), expired, ended=sum(ended), lingering=lingering)


async def _start(purse: Purse, grant: Grant) -> None:
    """Move the amount of a grant that waited from what is owed to the wallet."""
    entries = {AccountKind.ACCRUED: -grant.amount, AccountKind.WALLET: grant.amount}
    transaction_id = await purse.post(Reference("start", "grant", grant.id), entries)
    await purse.start(grant, transaction_id=transaction_id)


async def _waiting(connection: AsyncConnection, wallet_id: WalletId, *, now: datetime) -> Sequence[Grant]:
    """Grants whose start has come and that have not started, in the order of their starts."""
    known, moved = wallet_grant.c, wallet_move.c
    started = select(moved.number).where(moved.grant_id == known.id, moved.kind == MoveKind.STARTED.value)
    query = select(wallet_grant).where(
        known.wallet_id == wallet_id, known.starts_at <= now, ~started.exists()
    )
    rows = await connection.execute(query.order_by(known.starts_at, known.id))
    return [as_grant(row._mapping) for row in rows]


def _expiring(purse: Purse, *, now: datetime) -> list[Grant]:
    """Started grants whose end has come and that are not ended, in the order in which they burn."""
    done: set[GrantId | None] = {move.grant_id for move in purse.moves if move.kind is MoveKind.ENDED}
    due = (grant for grant in purse.grants.values() if grant.expires_at and grant.expires_at <= now)
    return sorted((grant for grant in due if grant.id not in done), key=rank_of)
