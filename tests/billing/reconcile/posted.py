"""Requests posted as the settler posts them, and hands that change what no hand may change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from sqlalchemy import text

from app.core.clock import from_ms
from app.core.ids import IncarnationId
from billing.journal.facts import Facts
from billing.journal.join import Charge
from billing.journal.model import Admitted, Settled, encode
from billing.journal.posting import post_charges
from billing.reconcile.books import prove
from billing.reconcile.days import day_of
from billing.reconcile.model import Gap, Pair
from tests.billing.journal.shop import NOW_MS, Shop, settled

TODAY = day_of(from_ms(NOW_MS))
BOOKS = tuple(pair for pair in Pair if pair is not Pair.ENGINE_EVENTS)
_HISTORY = ("usage_event", "ledger_transaction", "ledger_entry", "wallet_grant", "usage_link")


async def post(
    shop: Shop, requests: Sequence[tuple[Admitted, Settled]], *, incarnation_id: IncarnationId | None = None
) -> None:
    """Post settled requests in one transaction."""
    charges = [Charge(0, 0, a, s, encode(a), encode(s)) for a, s in requests]
    facts, now = Facts(), from_ms(shop.clock.now_ms())
    incarnation_id = incarnation_id or await shop.incarnation()
    async with shop.engine.begin() as connection:
        await facts.load(connection, charges)
        assert [facts.flaw(charge) for charge in charges] == [None] * len(charges)
        await post_charges(connection, charges, incarnation_id=incarnation_id, facts=facts, now=now)


async def post_some(shop: Shop, number: int = 3) -> list[str]:
    """Post so many completed requests; returns their ids."""
    admitted = [shop.catalogue.admitted(at_ms=NOW_MS + each) for each in range(number)]
    await post(shop, [(each, settled(each)) for each in admitted])
    return [each.request_id for each in admitted]


async def force(shop: Shop, *statements: str) -> None:
    """Do what the database forbids, as a broken disk or the hand of its owner might."""
    async with shop.owner.begin() as connection:
        for table in _HISTORY:
            await connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        for statement in statements:
            await connection.execute(text(statement))
        for table in _HISTORY:
            await connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))


async def gaps(shop: Shop, pair: Pair, *, day: date | None = None) -> list[Gap]:
    """What a running process finds of a pair."""
    async with shop.engine.begin() as connection:
        proof = await prove(connection, pair, day=day or today(shop), now=from_ms(shop.clock.now_ms()))
    return list(proof.gaps)


async def all_gaps(shop: Shop) -> list[Gap]:
    return [gap for pair in BOOKS for gap in await gaps(shop, pair)]


def today(shop: Shop) -> date:
    return day_of(from_ms(shop.clock.now_ms()))
