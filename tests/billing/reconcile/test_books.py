"""Each pair of books is broken on purpose, and the gap is found and named."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from app.core import ids
from billing.journal.model import Admitted
from billing.reconcile.model import Pair
from tests.billing.journal.shop import USAGE, Shop, settled
from tests.billing.reconcile.posted import TODAY, all_gaps, force, gaps, post, post_some

COST = 700 * 540_000 + 200 * 180_000 + 90 * 2_160_000


async def test_books_that_are_well_have_no_gap(shop: Shop) -> None:
    assert await all_gaps(shop) == []
    await post_some(shop)
    assert await all_gaps(shop) == []


async def test_an_event_that_vanished_is_missing_in_rollup_ledger_and_wallet(shop: Shop) -> None:
    lost, *_ = await post_some(shop)
    await force(shop, f"DELETE FROM usage_event WHERE request_id = '{lost}'")
    rollup = await gaps(shop, Pair.EVENTS_ROLLUPS)
    assert {gap.scope.rpartition(" ")[2]: gap.difference for gap in rollup} == {
        "requests": -1,
        "cost": -COST,
        "input": -USAGE.input,
        "input_cached": -USAGE.input_cached,
        "output": -USAGE.output,
        "reasoning": -USAGE.reasoning,
        "billed_input": -USAGE.input,
        "billed_input_cached": -USAGE.input_cached,
        "billed_output": -USAGE.output,
    }
    assert {gap.kind for gap in rollup} == {"sum_differs"}
    assert {gap.tenant_id for gap in rollup} == {shop.catalogue.tenant_id}
    (ledger,) = await gaps(shop, Pair.EVENTS_LEDGER)
    assert (ledger.kind, ledger.left, ledger.right) == ("amount_differs", 2 * COST, 3 * COST)
    (wallet,) = await gaps(shop, Pair.LEDGER_WALLETS)
    assert (wallet.kind, wallet.difference) == ("ledger_differs", COST)


async def test_events_that_all_vanished_leave_a_rollup_and_an_entry_without_them(shop: Shop) -> None:
    await post_some(shop)
    await force(shop, "DELETE FROM usage_event")
    assert {gap.kind for gap in await gaps(shop, Pair.EVENTS_ROLLUPS)} == {"rollup_without_events"}
    (ledger,) = await gaps(shop, Pair.EVENTS_LEDGER)
    assert (ledger.kind, ledger.left, ledger.right) == ("entry_without_events", None, 3 * COST)


async def test_a_rollup_that_vanished_or_was_changed_is_found(shop: Shop) -> None:
    await post_some(shop)
    await force(shop, "UPDATE usage_rollup SET output = output + 7")
    (gap,) = await gaps(shop, Pair.EVENTS_ROLLUPS)
    assert (gap.kind, gap.unit, gap.left, gap.right) == ("sum_differs", "tokens", 270, 277)
    assert gap.explanation.startswith("output of 15 minutes: events and corrections sum to 270")
    await force(shop, "DELETE FROM usage_rollup")
    assert {gap.kind for gap in await gaps(shop, Pair.EVENTS_ROLLUPS)} == {"events_without_rollup"}


async def test_only_the_day_that_is_asked_for_is_looked_at(shop: Shop) -> None:
    await post_some(shop)
    await force(shop, "UPDATE usage_rollup SET cost = cost + 1")
    assert len(await gaps(shop, Pair.EVENTS_ROLLUPS)) == 1
    for day in (TODAY - timedelta(days=1), TODAY + timedelta(days=1)):
        assert await gaps(shop, Pair.EVENTS_ROLLUPS, day=day) == []


async def test_an_entry_of_another_amount_breaks_double_entry_and_its_events(shop: Shop) -> None:
    await post_some(shop)
    await force(
        shop,
        "UPDATE ledger_entry SET amount = amount + 5 FROM ledger_account a "
        "WHERE a.id = account_id AND a.kind = 'revenue'",
    )
    (unbalanced,) = await gaps(shop, Pair.DOUBLE_ENTRY)
    assert (unbalanced.kind, unbalanced.difference) == ("unbalanced", 5)
    (ledger,) = await gaps(shop, Pair.EVENTS_LEDGER)
    assert (ledger.kind, ledger.difference) == ("amount_differs", -5)


async def test_a_transaction_that_lost_an_entry_is_found(shop: Shop) -> None:
    await post_some(shop)
    await force(
        shop,
        "DELETE FROM ledger_entry USING ledger_account a WHERE a.id = account_id AND a.kind = 'revenue'",
    )
    (unbalanced,) = await gaps(shop, Pair.DOUBLE_ENTRY)
    assert (unbalanced.kind, unbalanced.difference) == ("unbalanced", -3 * COST)
    (ledger,) = await gaps(shop, Pair.EVENTS_LEDGER)
    assert (ledger.kind, ledger.right) == ("events_without_entry", None)


async def test_a_transaction_of_another_tenant_is_found(shop: Shop) -> None:
    await post_some(shop)
    other = ids.tenant_id()
    await force(
        shop,
        f"INSERT INTO tenant (id, name, currency) VALUES ('{other}', 'Other', 'USD')",
        f"UPDATE ledger_transaction SET tenant_id = '{other}' WHERE kind = 'usage'",
    )
    assert [gap.kind for gap in await gaps(shop, Pair.EVENTS_LEDGER)] == ["wrong_tenant"]
    assert [gap.kind for gap in await gaps(shop, Pair.DOUBLE_ENTRY)] == ["wrong_tenant"]


async def test_a_charge_whose_transaction_is_gone_is_found(shop: Shop) -> None:
    (request_id,) = await post_some(shop, 1)
    await force(
        shop,
        "DELETE FROM ledger_entry USING ledger_transaction t WHERE id = transaction_id AND kind = 'usage'",
        "DELETE FROM ledger_transaction WHERE kind = 'usage'",
    )
    (gap,) = await gaps(shop, Pair.EVENTS_LEDGER)
    assert (gap.kind, gap.scope, gap.left, gap.right) == ("event_without_transaction", request_id, COST, None)


async def test_a_wallet_whose_allowance_tells_another_balance_is_found(shop: Shop) -> None:
    await post_some(shop)
    await force(shop, "UPDATE allowance SET spent = spent - 3")
    (gap,) = await gaps(shop, Pair.LEDGER_WALLETS)
    assert (gap.kind, gap.scope, gap.difference) == ("allowance_differs", shop.wallet.id, -3)
    (lease,) = await gaps(shop, Pair.LEASES_ALLOWANCES)
    assert (lease.kind, lease.scope, lease.difference) == ("spent_differs", shop.wallet.allowance_id, 3)


async def test_what_the_dead_still_hold_is_found_unless_a_parked_record_may_take_it(shop: Shop) -> None:
    dead = await shop.incarnation(lent=1000)
    await force(shop, f"UPDATE incarnation SET status = 'closed', closed_at = now() WHERE id = '{dead}'")
    (gap,) = await gaps(shop, Pair.LEASES_ALLOWANCES)
    assert (gap.kind, gap.difference) == ("lent_to_the_dead", 1000)
    await force(
        shop,
        "INSERT INTO parked_record (incarnation_id, file_offset, reason, record, holds, parked_at) VALUES "
        f"""('{dead}', 1, 'no such price', '', '[["{shop.wallet.allowance_id}", "1000"]]', now())""",
    )
    assert await gaps(shop, Pair.LEASES_ALLOWANCES) == []
    (parked,) = await gaps(shop, Pair.JOURNAL_EVENTS)
    assert (parked.kind, parked.explanation) == ("parked", "set aside: no such price")


async def test_use_that_no_lease_covered_is_found(shop: Shop) -> None:
    alive = await shop.incarnation()
    await force(shop, f"UPDATE lease SET uncovered = 4 WHERE incarnation_id = '{alive}'")
    assert [gap.kind for gap in await gaps(shop, Pair.LEASES_ALLOWANCES)] == ["uncovered"]


async def test_a_process_that_fell_silent_is_found_with_its_journal(shop: Shop) -> None:
    silent = await shop.incarnation(lent=1000)
    assert await gaps(shop, Pair.JOURNAL_EVENTS) == []
    await force(shop, "UPDATE incarnation SET synced_at = now() - interval '5 minutes'")
    (gap,) = await gaps(shop, Pair.JOURNAL_EVENTS)
    assert (gap.kind, gap.scope, gap.left) == ("journal_behind", silent, None)
    assert "fell silent 30" in gap.explanation


async def test_a_process_that_has_nothing_to_do_is_silent_without_a_gap(shop: Shop) -> None:
    idle = await shop.incarnation(lent=1000)
    settled_all = f"UPDATE lease SET settled = 400, returned = 600 WHERE incarnation_id = '{idle}'"
    await force(shop, settled_all, "UPDATE incarnation SET synced_at = now() - interval '1 day'")
    assert await gaps(shop, Pair.JOURNAL_EVENTS) == []


async def test_a_journal_with_bytes_that_nobody_wrote_is_found(shop: Shop) -> None:
    await force(
        shop,
        "INSERT INTO journal_damage (incarnation_id, file_offset, byte_count, found_at) "
        "VALUES ('inc_1', 77, 12, now())",
    )
    (gap,) = await gaps(shop, Pair.JOURNAL_EVENTS)
    assert (gap.kind, gap.scope, gap.left, gap.right) == ("quarantined", "inc_1 at 77", None, None)
    assert gap.explanation.startswith("12 bytes of a journal")


async def test_a_second_settlement_that_says_something_else_is_a_conflict_of_its_day(shop: Shop) -> None:
    admitted = shop.catalogue.admitted()
    incarnation_id = await shop.incarnation()
    await post(shop, [(admitted, settled(admitted))], incarnation_id=incarnation_id)
    await post(shop, [(admitted, settled(admitted, status=201))], incarnation_id=incarnation_id)
    (gap,) = await gaps(shop, Pair.CONFLICTS)
    assert (gap.kind, gap.scope, gap.backend_id) == ("conflict", admitted.request_id, "bck_one")
    assert await gaps(shop, Pair.CONFLICTS, day=TODAY + timedelta(days=1)) == []


async def test_no_more_gaps_are_told_than_anyone_reads(shop: Shop) -> None:
    await post(shop, [(each, settled(each)) for each in _by_many_keys(shop, 50)])
    await force(shop, "DELETE FROM usage_rollup")
    assert len(await gaps(shop, Pair.EVENTS_ROLLUPS)) == 200


def _by_many_keys(shop: Shop, number: int) -> list[Admitted]:
    one = shop.catalogue.admitted
    return [msgspec.structs.replace(one(), key_id=ids.KeyId(f"key_{each}")) for each in range(number)]
