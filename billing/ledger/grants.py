"""Grants: money that comes into a wallet, once per reference, at once or later; and where it is.

A grant that starts later is owed (`accrued`) until `expiry.turn` starts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict
from app.core.ids import WalletId
from billing.ledger import posting
from billing.ledger.model import AccountKind, Grant, GrantKind, Reference, Terms, Transaction, Wallet
from billing.ledger.purse import Purse
from billing.ledger.standing import GrantStanding
from billing.ledger.tables import wallet_grant
from billing.ledger.wallets import as_grant, lock_wallet, read_story

AT_ONCE = Terms()
"""Burns at priority 100, from now on, for ever."""


async def grant(
    connection: AsyncConnection,
    *,
    wallet_id: WalletId,
    amount: int,
    kind: GrantKind | str,
    reason: str,
    reference: str,
    created_by: str,
    terms: Terms = AT_ONCE,
    now: datetime | None = None,
) -> Grant:
    """Put `amount` picos into a wallet. The same reference again returns the first grant.

    now: None is the database's time. Raises Conflict if the first grant had another kind, amount or terms,
    or if this one would expire before it can be used, Rejected if there is no such wallet.
    """
    if amount <= 0:
        raise ValueError("a grant is more than nothing")
    into = await lock_wallet(connection, wallet_id)
    at = now or (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    starts_at = terms.starts_at or at
    fresh = Grant(
        id=ids.grant_id(),
        wallet_id=wallet_id,
        kind=GrantKind(kind),
        amount=amount,
        reason=reason,
        reference=reference,
        transaction_id=ids.transaction_id(),
        created_by=created_by,
        created_at=at,
        priority=terms.priority,
        starts_at=starts_at,
        expires_at=terms.expires_at,
    )
    if (known := await _find_granted(connection, fresh)) is not None:
        return _same(known, fresh, terms=terms)
    if terms.expires_at is not None and terms.expires_at <= max(starts_at, at):
        raise Conflict("a grant expires after it has started, and not in the past", reference=reference)
    post = _start if starts_at <= at else _owe
    return await post(connection, fresh, into=into)


async def list_grants(
    connection: AsyncConnection, wallet_id: WalletId, *, after: str | None, limit: int
) -> list[Grant]:
    """Grants of a wallet in the order of their making, after a given one."""
    at = wallet_grant.c
    query = select(wallet_grant).where(at.wallet_id == wallet_id, at.id > (after or "")).order_by(at.id)
    return [as_grant(row._mapping) for row in await connection.execute(query.limit(limit))]


async def list_standing_grants(
    connection: AsyncConnection, wallet_id: WalletId, *, after: str | None, limit: int, now: datetime
) -> Sequence[GrantStanding]:
    """As `list_grants`, each with where its money is."""
    grants = await list_grants(connection, wallet_id, after=after, limit=limit)
    burned = (await read_story(connection, wallet_id)).burned()
    return [GrantStanding.of(grant, burned, now=now) for grant in grants]


async def list_closed_grants(
    connection: AsyncConnection, wallet_id: WalletId, *, limit: int, now: datetime
) -> list[GrantStanding]:
    """The newest grants that have nothing left, or have not started, newest first."""
    at = wallet_grant.c
    story = await read_story(connection, wallet_id)
    burned = story.burned()
    left = [grant_id for grant_id in story.grants if burned.left_of(grant_id)]
    query = select(wallet_grant).where(at.wallet_id == wallet_id, at.id.not_in(left))
    rows = await connection.execute(query.order_by(at.id.desc()).limit(limit))
    return [GrantStanding.of(as_grant(row._mapping), burned, now=now) for row in rows]


async def grant_standing(connection: AsyncConnection, granted: Grant, *, now: datetime) -> GrantStanding:
    """Where the money of one grant is."""
    burned = (await read_story(connection, granted.wallet_id)).burned()
    return GrantStanding.of(granted, burned, now=now)


async def _start(connection: AsyncConnection, fresh: Grant, *, into: Wallet) -> Grant:
    """Post a grant that burns at once."""
    await posting.open_accounts(connection, into.tenant_id, kinds=_accounts(fresh), currency=into.currency)
    purse = await Purse.hold(connection, into, at=fresh.created_at)
    reference = Reference("grant", "wallet", f"{into.id}:{fresh.reference}")
    entries = {AccountKind.WALLET: fresh.amount, fresh.kind.source: -fresh.amount}
    posted = msgspec.structs.replace(fresh, transaction_id=await purse.post(reference, entries))
    await _insert(connection, posted)
    await purse.start(posted, transaction_id=posted.transaction_id)
    await purse.release()
    return posted


async def _owe(connection: AsyncConnection, fresh: Grant, *, into: Wallet) -> Grant:
    """Post a grant that starts later: until then it is owed and limits nothing."""
    transaction = Transaction(
        id=fresh.transaction_id,
        reference=Reference("grant", "wallet", f"{into.id}:{fresh.reference}"),
        tenant_id=into.tenant_id,
        currency=into.currency,
        at=fresh.created_at,
        entries={AccountKind.ACCRUED: fresh.amount, fresh.kind.source: -fresh.amount},
    )
    await posting.post(connection, [transaction])
    await _insert(connection, fresh)
    return fresh


def _accounts(fresh: Grant) -> tuple[AccountKind, ...]:
    return AccountKind.WALLET, fresh.kind.source


async def _insert(connection: AsyncConnection, fresh: Grant) -> None:
    values = {name: getattr(fresh, name) for name in fresh.__struct_fields__}
    await connection.execute(insert(wallet_grant).values({**values, "kind": fresh.kind.value}))


async def _find_granted(connection: AsyncConnection, fresh: Grant) -> Grant | None:
    at = wallet_grant.c
    query = select(wallet_grant).where(at.wallet_id == fresh.wallet_id, at.reference == fresh.reference)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else as_grant(row._mapping)


def _same(known: Grant, asked: Grant, *, terms: Terms) -> Grant:
    """The grant that stands for a reference. Raises Conflict if it isn't the one asked for."""
    same = (
        (known.kind, known.amount, known.priority, known.expires_at)
        == (asked.kind, asked.amount, asked.priority, asked.expires_at)
    ) and terms.starts_at in (None, known.starts_at)
    if not same:
        raise Conflict("this reference was granted with other terms", reference=asked.reference)
    return known
