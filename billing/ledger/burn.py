"""Which grant pays for what: a wallet's whole story replayed, or continued. Pure.

A grant burns from its start until it is used up or has expired, in the order (priority, expiry with never
last, creation, id); money that a correction gave back burns after all grants and never expires. What no
grant covers is credit, and the next money that comes repays it first. Only how much was spent between two
moves matters, not by which requests: so the story is the moves, each with what was spent before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from app.core.errors import InvariantViolation
from app.core.ids import GrantId
from billing.ledger.model import Grant, Move, MoveKind

RETURNED = GrantId("returned")
"""The name of the pot that corrections fill."""

Rank = tuple[int, datetime, datetime, str]
_NEVER = datetime.max.replace(tzinfo=UTC)
_LAST: Rank = (1 << 15, _NEVER, _NEVER, RETURNED)


class Pot(msgspec.Struct, frozen=True):
    """Where the money of one grant is, in picos; the three sum to what came in.   rank: when it burns."""

    rank: Rank
    burned: int = 0
    remaining: int = 0
    expired: int = 0


class Burned(msgspec.Struct, frozen=True):
    """A wallet's pots after some of its story, in picos.

    credit: spent, and covered by nothing; more than 0 only if every pot is empty.
    """

    pots: Mapping[GrantId, Pot] = {}
    credit: int = 0
    spent: int = 0

    @property
    def remaining(self) -> int:
        return sum(pot.remaining for pot in self.pots.values())

    def left_of(self, grant_id: GrantId) -> int:
        """What remains of a grant; 0 of one that has not started."""
        pot = self.pots.get(grant_id)
        return 0 if pot is None else pot.remaining


NOTHING = Burned()


def rank_of(grant: Grant) -> Rank:
    """When a grant burns: the lowest first."""
    return grant.priority, grant.expires_at or _NEVER, grant.created_at, grant.id


def burn(
    moves: Iterable[Move], *, grants: Mapping[GrantId, Grant], spent: int, after: Burned = NOTHING
) -> Burned:
    """The pots after these moves and a total of `spent`, both since `after` or since the beginning.

    moves: in any order, each once.   grants: those that the moves name.   Continued from any point the
    answer is that of a replay from the beginning. Raises InvariantViolation if there is no such story:
    spending fell, or more expired than remained. O(n log n).
    """
    fire = _Fire(after)
    for move in sorted(moves, key=lambda move: move.number):
        fire.spend_up_to(move.spent)
        fire.take(move, grants)
    fire.spend_up_to(spent)
    return fire.state()


class _Fire:
    """The pots while a story is replayed; those that have something left stand in a heap by rank."""

    def __init__(self, after: Burned) -> None:
        self._pots = {name: [pot.burned, pot.remaining, pot.expired] for name, pot in after.pots.items()}
        self._ranks = {name: pot.rank for name, pot in after.pots.items()}
        self._heap = [(pot.rank, name) for name, pot in after.pots.items() if pot.remaining]
        heapq.heapify(self._heap)
        self._credit, self._spent = after.credit, after.spent

    def state(self) -> Burned:
        pots = {name: Pot(self._ranks[name], *amounts) for name, amounts in self._pots.items()}
        return Burned(pots, self._credit, self._spent)

    def spend_up_to(self, total: int) -> None:
        amount = total - self._spent
        if amount < 0:
            raise InvariantViolation("what a wallet has spent never falls", spent=str(total))
        self._spent = total
        self._spend(amount)

    def take(self, move: Move, grants: Mapping[GrantId, Grant]) -> None:
        match move.kind:
            case MoveKind.STARTED if move.grant_id is not None:
                self._fill(move.grant_id, rank_of(grants[move.grant_id]), amount=move.amount)
            case MoveKind.RETURNED:
                self._fill(RETURNED, _LAST, amount=move.amount)
            case MoveKind.CHARGED:
                self._spend(-move.amount)
            case MoveKind.EXPIRED if move.grant_id is not None:
                self._expire(move.grant_id, amount=-move.amount)

    def _spend(self, amount: int) -> None:
        while amount and self._heap:
            pot = self._pots[self._heap[0][1]]
            taken = min(amount, pot[1])
            pot[0] += taken
            pot[1] -= taken
            amount -= taken
            if not pot[1]:
                heapq.heappop(self._heap)
        self._credit += amount

    def _fill(self, name: GrantId, rank: Rank, *, amount: int) -> None:
        self._ranks[name] = rank
        pot = self._pots.setdefault(name, [0, 0, 0])
        repaid = min(self._credit, amount)
        self._credit -= repaid
        pot[0] += repaid
        if not pot[1] and amount > repaid:
            heapq.heappush(self._heap, (rank, name))
        pot[1] += amount - repaid

    def _expire(self, name: GrantId, *, amount: int) -> None:
        pot = self._pots.get(name, [0, 0, 0])
        if amount > pot[1]:
            raise InvariantViolation("more of a grant expires than remains", grant_id=name)
        pot[1] -= amount
        pot[2] += amount
