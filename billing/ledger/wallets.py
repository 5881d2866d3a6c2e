"""Finds wallets, and reads one with its whole story in a single statement: so all of it is of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
from sqlalchemy import RowMapping, Select, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Rejected, RejectReason
from app.core.ids import GrantId, TenantId, WalletId
from billing.ledger.burn import Burned, burn
from billing.ledger.model import Balance, Grant, GrantKind, Move, MoveKind, Wallet
from billing.ledger.tables import wallet, wallet_grant, wallet_move
from billing.quota.tables import allowance, lease

_WALLET = select(wallet)


class Story(msgspec.Struct, frozen=True):
    """A wallet with all that moved it.   limit, spent, outstanding: of its allowance, in picos.

    grants: those that have started.
    """

    wallet: Wallet
    limit: int
    spent: int
    outstanding: int
    moves: tuple[Move, ...]
    grants: Mapping[GrantId, Grant]

    def burned(self) -> Burned:
        """Which grant has paid for what."""
        return burn(self.moves, grants=self.grants, spent=self.spent)

    def balance(self) -> Balance:
        credit_limit = self.wallet.credit_limit
        return Balance(
            posted=self.limit - credit_limit - self.spent,
            held=self.outstanding,
            available=self.limit - self.spent - self.outstanding,
            credit_limit=credit_limit,
            currency=self.wallet.currency,
        )


async def find_wallet(connection: AsyncConnection, wallet_id: WalletId) -> Wallet | None:
    return await _find(connection, _WALLET.where(wallet.c.id == wallet_id))


async def find_wallet_of(connection: AsyncConnection, tenant_id: TenantId) -> Wallet | None:
    """The wallet of a tenant, if it has one."""
    return await _find(connection, _WALLET.where(wallet.c.tenant_id == tenant_id))


async def get_wallet(connection: AsyncConnection, wallet_id: WalletId) -> Wallet:
    """A wallet. Raises Rejected (404) if there is no such one."""
    return await find_wallet(connection, wallet_id) or _unknown(wallet_id)


async def lock_wallet(connection: AsyncConnection, wallet_id: WalletId) -> Wallet:
    """The wallet, locked: whatever moves it, or changes its terms, comes one after the other.

    The first lock of all who move a wallet; its allowance's is the last. Raises Rejected (404).
    """
    found = await _find(connection, _WALLET.where(wallet.c.id == wallet_id).with_for_update())
    return found or _unknown(wallet_id)


async def read_story(connection: AsyncConnection, wallet_id: WalletId) -> Story:
    """A wallet's story until now. Raises Rejected (404) if there is no such wallet."""
    rows = (await connection.execute(_story_of(wallet_id))).mappings().all()
    if not rows:
        _unknown(wallet_id)
    moved = [row for row in rows if row["move_number"] is not None]
    started = [row for row in moved if row["move_kind"] == MoveKind.STARTED]
    grants = [as_grant(_part(row, "grant_", table=wallet_grant)) for row in started]
    return Story(
        wallet=Wallet(**_part(rows[0], "wallet_", table=wallet)),
        limit=rows[0]["limit_amount"],
        spent=rows[0]["spent"],
        outstanding=int(rows[0]["outstanding"]),
        moves=tuple(as_move(_part(row, "move_", table=wallet_move)) for row in moved),
        grants={grant.id: grant for grant in grants},
    )


def as_grant(row: Any) -> Grant:
    """The grant of a whole row."""
    return Grant(**{**row, "kind": GrantKind(row["kind"])})


def as_move(row: Any) -> Move:
    """The move of a whole row."""
    return Move(**{**row, "kind": MoveKind(row["kind"])})


def _story_of(wallet_id: WalletId) -> Select[Any]:
    amount = lease.c.granted - lease.c.settled - lease.c.returned
    out = select(func.coalesce(func.sum(amount), 0)).where(lease.c.allowance_id == allowance.c.id, amount > 0)
    named = [("wallet_", wallet), ("move_", wallet_move), ("grant_", wallet_grant)]
    return (
        select(
            allowance.c.limit_amount,
            allowance.c.spent,
            out.scalar_subquery().label("outstanding"),
            *(column.label(prefix + column.name) for prefix, table in named for column in table.c),
        )
        .select_from(wallet)
        .join(allowance, allowance.c.id == wallet.c.allowance_id)
        .outerjoin(wallet_move, wallet_move.c.wallet_id == wallet.c.id)
        .outerjoin(wallet_grant, wallet_grant.c.id == wallet_move.c.grant_id)
        .where(wallet.c.id == wallet_id)
        .order_by(wallet_move.c.number)
    )


def _part(row: RowMapping, prefix: str, *, table: Table) -> dict[str, Any]:
    return {column.name: row[prefix + column.name] for column in table.c}


async def _find(connection: AsyncConnection, query: Select[*tuple[object, ...]]) -> Wallet | None:
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else Wallet(**row._mapping)


def _unknown(wallet_id: WalletId) -> NoReturn:
    raise Rejected(RejectReason.NOT_FOUND, "there is no such wallet", status=404, wallet_id=wallet_id)
