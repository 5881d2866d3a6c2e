"""A wallet held still, to be moved: its ledger entries, its numbered moves and its limit change together.

The order of locks is that of a settlement: roll-ups, then accounts, and the allowance last. So whoever
needs accounts or roll-ups beyond those that exist touches them before the purse is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.ids import CorrectionId, GrantId, TransactionId
from billing.ledger import posting
from billing.ledger.burn import Burned, burn
from billing.ledger.model import AccountKind, Grant, Move, MoveKind, Reference, Transaction, Wallet
from billing.ledger.tables import wallet_move
from billing.ledger.wallets import Story, read_story
from billing.quota import authority

ACCOUNTS = (AccountKind.WALLET, AccountKind.ACCRUED, AccountKind.BREAKAGE, AccountKind.PROMO)
"""Those between which a grant's own life moves money."""


@dataclass
class Purse:
    """One wallet in one transaction, from `hold` to `release`; nobody else moves, spends or lends of it."""

    connection: AsyncConnection
    story: Story
    at: datetime
    burned: Burned
    moves: list[Move]
    grants: dict[GrantId, Grant]
    _limit_change: int = field(default=0)
    _applied: int = field(default=0)

    @classmethod
    async def hold(cls, connection: AsyncConnection, held: Wallet, *, at: datetime) -> Purse:
        """The purse of a locked wallet (`lock_wallet`), whose accounts are open.   at: time of its moves."""
        await authority.hold_still(connection, held.allowance_id)
        story = await read_story(connection, held.id)
        return cls(connection, story, at, story.burned(), list(story.moves), dict(story.grants))

    @property
    def available(self) -> int:
        """What is neither spent nor lent, credit included; below zero after an overrun."""
        return self.story.balance().available + self._limit_change

    async def post(self, reference: Reference, entries: Mapping[AccountKind, int]) -> TransactionId:
        """The id of a new ledger transaction."""
        transaction = Transaction(
            id=ids.transaction_id(),
            reference=reference,
            tenant_id=self.story.wallet.tenant_id,
            currency=self.story.wallet.currency,
            at=self.at,
            entries=entries,
        )
        return (await posting.post(self.connection, [transaction]))[reference.ref_id]

    async def start(self, grant: Grant, *, transaction_id: TransactionId) -> None:
        """Let a grant burn from now on; the transaction has put its amount into the wallet."""
        self.grants[grant.id] = grant
        await self.move(MoveKind.STARTED, grant.amount, grant_id=grant.id, transaction_id=transaction_id)

    async def expire(self, grant: Grant) -> bool:
        """Take what no hold may still use of a grant that has expired; True if nothing of it remains.

        What is lent counts as used in the order of burning: that much of each grant stays for its holds.
        """
        lent = burn([], grants={}, spent=self.burned.spent + self.story.outstanding, after=self.burned)
        amount = min(lent.left_of(grant.id), max(self.available, 0))
        if amount:
            await self._apply()  # what has just started can be taken again
            number = 1 + sum(
                move.kind is MoveKind.EXPIRED and move.grant_id == grant.id for move in self.moves
            )
            reference = Reference("expiry", "grant", f"{grant.id}:{number}")
            entries = {AccountKind.WALLET: -amount, grant.kind.heir: amount}
            transaction_id = await self.post(reference, entries)
            await self.move(MoveKind.EXPIRED, -amount, grant_id=grant.id, transaction_id=transaction_id)
        if self.burned.left_of(grant.id):
            return False
        await self.move(MoveKind.ENDED, 0, grant_id=grant.id, transaction_id=None)
        return True

    async def move(
        self,
        kind: MoveKind,
        amount: int,
        *,
        grant_id: GrantId | None = None,
        correction_id: CorrectionId | None = None,
        transaction_id: TransactionId | None,
    ) -> None:
        """Write down the next move; its ledger transaction, grant and correction stand already."""
        made = Move(
            wallet_id=self.story.wallet.id,
            number=len(self.moves) + 1,
            kind=kind,
            grant_id=grant_id,
            correction_id=correction_id,
            amount=amount,
            spent=self.story.spent,
            at=self.at,
            transaction_id=transaction_id,
        )
        values = {name: getattr(made, name) for name in made.__struct_fields__}
        await self.connection.execute(insert(wallet_move).values({**values, "kind": kind.value}))
        self.moves.append(made)
        self.burned = burn([made], grants=self.grants, spent=made.spent, after=self.burned)
        self._limit_change += amount

    async def release(self) -> None:
        """Change the allowance's limit by all moves. The last step."""
        await self._apply()

    async def _apply(self) -> None:
        """Change the limit by the moves since the last time."""
        change, self._applied = self._limit_change - self._applied, self._limit_change
        if change:
            await authority.change_limit(self.connection, self.story.wallet.allowance_id, by=change)
