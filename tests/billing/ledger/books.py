"""Buys at the shop, and the proof that events, corrections, moves, roll-ups, ledger and allowance are one."""

from __future__ import annotations

from app.core.clock import from_ms
from app.core.ids import IncarnationId, RequestId
from billing.journal.facts import Facts
from billing.journal.join import Charge
from billing.journal.model import encode
from billing.journal.posting import post_charges
from billing.ledger import proofs, service
from billing.metering.model import Usage
from tests.billing.journal.shop import USAGE, Shop, settled


async def buy(
    shop: Shop, usage: Usage = USAGE, *, incarnation_id: IncarnationId | None = None
) -> tuple[RequestId, int]:
    """Settle one request as the settler does, of a lease that covers it; returns it and its cost."""
    admitted = shop.catalogue.admitted()
    ended = settled(admitted, usage)
    borrower = incarnation_id or await shop.incarnation(lent=ended.cost_picos)
    charge = Charge(0, 0, admitted, ended, encode(admitted), encode(ended))
    facts = Facts()
    async with shop.engine.begin() as connection:
        await facts.load(connection, [charge])
        assert facts.flaw(charge) is None
        now = from_ms(shop.clock.now_ms())
        await post_charges(connection, [charge], incarnation_id=borrower, facts=facts, now=now)
    return admitted.request_id, ended.cost_picos


async def assert_books_are_one(shop: Shop) -> None:
    """Law 5, corrections included; and no allowance is spent or lent beyond its limit."""
    async with shop.engine.begin() as connection:
        assert await service.trial_balance(connection) == {"USD": 0}
        assert await proofs.drifts(connection) == []
    [events] = await shop.rows("SELECT coalesce(sum(cost), 0) FROM usage_event")
    [returned] = await shop.rows("SELECT coalesce(sum(amount), 0) FROM usage_correction")
    assert await shop.rows("SELECT coalesce(sum(cost), 0) FROM usage_rollup") == [events - returned]
    over = "SELECT id FROM allowance WHERE quota_available(id) < 0"
    assert await shop.rows(over) == []
