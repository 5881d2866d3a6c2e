"""Grants, expiries and corrections against the ledger: each broken on purpose, and found by its name."""

from __future__ import annotations

import pytest

from app.core.clock import from_ms
from billing.ledger import corrections
from billing.ledger.corrections import Asked
from billing.reconcile.model import Gap, Pair
from tests.billing.journal.shop import DEPOSIT, NOW_MS, Shop
from tests.billing.reconcile.posted import all_gaps, force, gaps, post_some, today

_FREE = "ALTER TABLE {0} DISABLE TRIGGER USER"
_KEEP = "ALTER TABLE {0} ENABLE TRIGGER USER"


@pytest.fixture
async def corrected(shop: Shop) -> Shop:
    """A shop in which one event was corrected by 500 picos."""
    request_id, *_ = await post_some(shop)
    asked = Asked(request_id, "a mistake", "one", "mem_one", 500)
    async with shop.engine.begin() as connection:
        await corrections.correct(connection, asked, now=from_ms(shop.clock.now_ms()))
    return shop


async def spoil(shop: Shop, table: str, statement: str) -> None:
    await force(shop, _FREE.format(table), statement, _KEEP.format(table))


def only(found: list[Gap]) -> tuple[str, int | None, int | None]:
    (gap,) = found
    return gap.kind, gap.left, gap.right


async def test_a_corrected_event_leaves_no_gap_anywhere(corrected: Shop) -> None:
    assert await all_gaps(corrected) == []


async def test_a_correction_of_another_amount_than_its_entries_is_found(corrected: Shop) -> None:
    await spoil(corrected, "usage_correction", "UPDATE usage_correction SET amount = 499")
    assert only(await gaps(corrected, Pair.CORRECTIONS_LEDGER)) == ("amount_differs", 499, 500)
    assert {gap.kind for gap in await gaps(corrected, Pair.EVENTS_ROLLUPS)} == {"sum_differs"}


async def test_a_correction_without_rollup_is_found(corrected: Shop) -> None:
    await force(corrected, "DELETE FROM usage_rollup WHERE usage_source = 'correction'")
    assert only(await gaps(corrected, Pair.EVENTS_ROLLUPS)) == ("events_without_rollup", -500, None)


async def test_an_entry_of_a_correction_that_is_gone_is_found(corrected: Shop) -> None:
    await force(
        corrected,
        "ALTER TABLE wallet_move DISABLE TRIGGER USER",
        "ALTER TABLE usage_correction DISABLE TRIGGER USER",
        "DELETE FROM wallet_move WHERE correction_id IS NOT NULL",
        "DELETE FROM usage_correction",
    )
    assert only(await gaps(corrected, Pair.CORRECTIONS_LEDGER)) == ("entry_without_correction", None, 500)
    assert only(await gaps(corrected, Pair.GRANTS_LEDGER)) == ("move_differs", None, 500)


async def test_a_move_of_another_amount_than_its_entry_is_found(corrected: Shop) -> None:
    await spoil(corrected, "wallet_move", "UPDATE wallet_move SET amount = 501 WHERE kind = 'returned'")
    assert only(await gaps(corrected, Pair.GRANTS_LEDGER)) == ("move_differs", 501, 500)


async def test_a_grant_of_another_amount_than_it_took_is_found(shop: Shop) -> None:
    assert await all_gaps(shop) == []
    await spoil(shop, "ledger_transaction", f"UPDATE ledger_transaction SET at = '{from_ms(NOW_MS)}'")
    await force(shop, "UPDATE wallet_grant SET amount = amount + 1")
    found = [
        gap for gap in await gaps(shop, Pair.GRANTS_LEDGER, day=today(shop)) if gap.kind == "grant_differs"
    ]
    assert only(found) == ("grant_differs", DEPOSIT + 1, DEPOSIT)
