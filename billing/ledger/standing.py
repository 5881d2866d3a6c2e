"""Where a wallet's money is: what each grant has left, has paid and has lost, and what expires next. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from billing.ledger.burn import RETURNED, Burned, Pot, rank_of
from billing.ledger.model import Balance, Grant
from billing.ledger.wallets import Story


class GrantState(StrEnum):
    """`lingering`: it has expired, and what remains is lent to requests that may still use it."""

    WAITING = "waiting"
    ACTIVE = "active"
    USED_UP = "used_up"
    LINGERING = "lingering"
    EXPIRED = "expired"


class GrantStanding(msgspec.Struct, frozen=True):
    """A grant and where its money is, in picos: the three sum to its amount, once it has started."""

    grant: Grant
    state: GrantState
    remaining: int
    burned: int
    expired: int

    @property
    def id(self) -> str:
        return self.grant.id

    @classmethod
    def of(cls, grant: Grant, burned: Burned, *, now: datetime) -> GrantStanding:
        """Where the money of a grant is.   now: decides only what it is called."""
        pot = burned.pots.get(grant.id)
        state = _state(grant, pot, now=now)
        if pot is None:
            return cls(grant, state, 0, 0, 0)
        return cls(grant, state, pot.remaining, pot.burned, pot.expired)


class Expiring(msgspec.Struct, frozen=True):
    """What expires next, if nothing of it is used until then: the sum of all that ends at that moment."""

    at: datetime
    amount: int


class Standing(msgspec.Struct, frozen=True):
    """A wallet's balance and its open grants in the order in which they burn.

    returned: what corrections gave back and nobody has used.   credit: used and covered by nothing. So
    posted = Σ remaining + returned − credit.
    """

    balance: Balance
    grants: tuple[GrantStanding, ...]
    returned: int
    credit: int
    expires_next: Expiring | None


def standing_of(story: Story, *, now: datetime) -> Standing:
    """Where the money of a wallet is. O(n log n) in its moves."""
    burned = story.burned()
    open_grants = [grant for grant in story.grants.values() if burned.left_of(grant.id)]
    standings = tuple(GrantStanding.of(grant, burned, now=now) for grant in sorted(open_grants, key=rank_of))
    return Standing(
        balance=story.balance(),
        grants=standings,
        returned=burned.left_of(RETURNED),
        credit=burned.credit,
        expires_next=_next_expiry(standings, now=now),
    )


def _state(grant: Grant, pot: Pot | None, *, now: datetime) -> GrantState:
    over = grant.expires_at is not None and grant.expires_at <= now
    if pot is None:
        return GrantState.WAITING
    if pot.remaining:
        return GrantState.LINGERING if over else GrantState.ACTIVE
    return GrantState.EXPIRED if pot.expired else GrantState.USED_UP


def _next_expiry(standings: tuple[GrantStanding, ...], *, now: datetime) -> Expiring | None:
    ahead = [(each.grant.expires_at, each.remaining) for each in standings if each.grant.expires_at]
    moments = [at for at, _ in ahead if at > now]
    if not moments:
        return None
    first = min(moments)
    return Expiring(first, sum(remaining for at, remaining in ahead if at == first))
