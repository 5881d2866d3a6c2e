"""The books are proven cheaply each minute and wholly each day; what is wrong is found either way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from billing.ledger import corrections, proofs
from billing.ledger.corrections import Asked
from billing.ledger.proofs import BACK, Proof
from tests.billing.journal.shop import DEPOSIT, Shop
from tests.billing.ledger.books import buy

WELL, WELL_IN_FULL = Proof({}, [], in_full=False), Proof({}, [], in_full=True)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
LATER = datetime.now(UTC) + timedelta(days=1)
"""After all that the tests post: some of it bears the database's time."""


async def prove(shop: Shop, at: datetime) -> Proof:
    async with shop.engine.begin() as connection:
        return await proofs.prove(connection, now=at)


async def checkpoint(shop: Shop) -> list[tuple[datetime, int]]:
    return await shop.rows("SELECT through, balance::bigint FROM ledger_checkpoint WHERE scope <> 'trial'")


async def spoil(shop: Shop, *statements: str) -> None:
    async with shop.owner.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def test_the_first_proof_looks_at_everything_the_next_at_what_is_new(shop: Shop) -> None:
    _, cost = await buy(shop)
    assert await prove(shop, LATER) == WELL_IN_FULL
    assert await checkpoint(shop) == [(LATER - BACK, DEPOSIT - cost)]
    assert await prove(shop, LATER + MINUTE) == WELL
    assert await prove(shop, LATER + DAY) == WELL_IN_FULL


async def test_a_checkpoint_moves_on_over_what_is_older_than_any_transaction(shop: Shop) -> None:
    request_id, cost = await buy(shop)
    await prove(shop, LATER)
    async with shop.engine.begin() as connection:
        await corrections.correct(connection, Asked(request_id, "r", "one", "me", 5), now=LATER)
    assert await prove(shop, LATER + MINUTE) == WELL
    assert await checkpoint(shop) == [(LATER - BACK, DEPOSIT - cost)]
    assert await prove(shop, LATER + BACK) == WELL
    assert await checkpoint(shop) == [(LATER, DEPOSIT - cost + 5)]


async def test_what_is_posted_before_a_checkpoint_is_no_false_alarm(shop: Shop) -> None:
    """Tests' settlements bear a time of months ago: before every checkpoint, as a very late one would."""
    await prove(shop, LATER)
    await buy(shop)
    assert await prove(shop, LATER + MINUTE) == WELL


@pytest.mark.parametrize("in_full", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE allowance SET spent = spent + 1",
        "UPDATE allowance SET limit_amount = limit_amount - 1",
        "UPDATE wallet SET credit_limit = 1",
    ],
)
async def test_a_wallet_that_drifts_is_found(shop: Shop, statement: str, in_full: bool) -> None:
    await buy(shop)
    await prove(shop, LATER)
    await spoil(shop, statement)
    at = LATER + (DAY if in_full else MINUTE)
    for _ in range(2):
        found = await prove(shop, at)
        assert [drift.wallet_id for drift in found.drifts] == [shop.wallet.id]
        at += MINUTE


async def test_a_new_entry_without_its_other_leg_is_found_and_stays_found(shop: Shop) -> None:
    await prove(shop, LATER)
    triggers = ("ledger_entry", "ledger_transaction")
    await spoil(
        shop,
        *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in triggers),
        "INSERT INTO ledger_transaction (id, kind, ref_type, ref_id, tenant_id, at, entry_count) "
        f"SELECT 'txn_x', 'odd', 't', 'r', id, '{LATER.isoformat()}', 2 FROM tenant",
        "INSERT INTO ledger_entry SELECT 'txn_x', id, 5 FROM ledger_account WHERE kind = 'cash'",
    )
    for minutes in (1, 60, 3 * 24 * 60):
        assert (await prove(shop, LATER + minutes * MINUTE)).unbalanced == {"USD": 5}


async def test_an_old_row_that_is_spoiled_is_found_within_a_day(shop: Shop) -> None:
    await buy(shop)
    await prove(shop, LATER)
    spoiled = "UPDATE ledger_entry SET amount = amount + 1 WHERE amount < 0"
    await spoil(shop, "ALTER TABLE ledger_entry DISABLE TRIGGER USER", spoiled)
    found = await prove(shop, LATER + DAY)
    assert found.unbalanced == {"USD": 2}
    assert len(found.drifts) == 1
