"""The settler posts what journals say, once, in one transaction with all that follows from it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.core.ids import BackendId
from billing.journal.failures import REFUSALS
from billing.journal.frames import unpack
from billing.journal.model import Progress, Reading, Refused, decode
from billing.journal.settler import Settler
from billing.metering.model import Outcome, Usage, UsageSource
from tests.billing.journal import journals
from tests.billing.journal.shop import DEPOSIT, NOW_MS, Shop, settled


def settler_of(shop: Shop, folder: Path, *, batch: int = 2000) -> Settler:
    return Settler(shop.engine, folder=folder, clock=shop.clock, batch=batch)


async def test_a_settlement_becomes_event_roll_up_ledger_entry_and_spent_lease(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    end = settled(admitted)
    writer = await journals.live(tmp_path, incarnation_id, admitted, end, clock=shop.clock)
    settler = settler_of(shop, tmp_path)
    assert await settler.look() == 1
    assert await shop.events(incarnation_id) == {admitted.request_id: ("completed", end.cost_picos)}
    balance = await shop.balance()
    assert balance.posted == DEPOSIT - end.cost_picos
    assert balance.held == DEPOSIT // 100 - end.cost_picos
    await shop.assert_the_books_agree()
    assert await settler.look() == 0
    settler.close()
    await writer.close()


async def test_an_event_tells_everything_that_explains_its_cost(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    end = settled(admitted, flags=("cached_unknown",), attempts=({"error": "nul \0 here", "ms": 3},))
    path = journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, end])))
    await settler_of(shop, tmp_path).look()
    wanted = "rates, holds, attempts, flags, hold, unleased, admitted_at, length(payload_hash), billed_input"
    [row] = await shop.rows(f"SELECT {wanted} FROM usage_event")
    rates, holds, attempts, flags, hold, unleased, at, hash_length, billed_input = row
    assert rates == {"input": 540000, "input_cached": 180000, "input_cache_write": 540000, "output": 2160000}
    held = admitted.holds[0]
    amounts = {"held": str(held.amount), "used": str(end.cost_picos)}
    assert holds == [{"allowance_id": held.allowance_id, "what": "picos", **amounts}]
    assert attempts == [{"error": "nul \ufffd here", "ms": 3}]
    assert (flags, int(hold), int(unleased), hash_length) == (["cached_unknown"], held.amount, 0, 64)
    assert at == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert billed_input == 700
    assert not path.exists()


async def test_an_overrun_is_charged_in_full_and_shown(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation(lent=DEPOSIT // 1000)
    admitted = shop.catalogue.admitted(input_bound=10, output_bound=1)
    end = settled(admitted)
    overrun = end.cost_picos - admitted.holds[0].amount
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, end])))
    settler = settler_of(shop, tmp_path)
    await settler.look()
    assert [int(value) for value in await shop.rows("SELECT unleased FROM usage_event")] == [overrun]
    assert [int(value) for value in await shop.rows("SELECT unleased FROM allowance")] == [overrun]
    balance = await shop.balance()
    assert (balance.posted, balance.held) == (DEPOSIT - end.cost_picos, 0)
    await shop.assert_the_books_agree()


async def test_a_free_request_is_an_event_without_a_ledger_transaction(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    end = settled(admitted, Usage(), outcome=Outcome.REFUSED_BY_ENGINE, status=400)
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, end])))
    await settler_of(shop, tmp_path).look()
    assert await shop.rows("SELECT cost = 0, transaction_id FROM usage_event") == [(True, None)]
    assert await shop.rows("SELECT count(*) FROM ledger_transaction WHERE kind = 'usage'") == [0]
    await shop.assert_the_books_agree()


async def test_unknown_usage_is_recorded_with_its_bound_and_not_charged(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted(input_bound=77, output_bound=88)
    end = settled(admitted, Usage(), outcome=Outcome.CLIENT_CANCELLED, source=UsageSource.UNKNOWN)
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, end])))
    await settler_of(shop, tmp_path).look()
    bound = {"input": 77, "input_cached": 0, "input_cache_write": 0, "output": 88}
    assert await shop.rows("SELECT usage_source, unknown_bound, cost = 0 FROM usage_event") == [
        ("unknown", bound, True)
    ]


async def test_requests_of_two_batches_are_two_ledger_transactions_and_one_roll_up(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    records = [
        record
        for number in range(7)
        for admitted in [shop.catalogue.admitted(at_ms=NOW_MS + number)]
        for record in (admitted, settled(admitted))
    ]
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    assert await settler_of(shop, tmp_path, batch=4).look() == 7
    assert await shop.rows("SELECT count(*) FROM ledger_transaction WHERE kind = 'usage'") == [2]
    assert await shop.rows("SELECT requests, bucket FROM usage_rollup") == [
        (7, datetime.fromtimestamp(NOW_MS // 900_000 * 900, UTC))
    ]
    await shop.assert_the_books_agree()


async def test_a_refusal_is_kept_with_its_numbers_and_costs_nothing(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    sample = shop.catalogue.admitted()
    refused = Refused(
        request_id=sample.request_id,
        at_ms=NOW_MS,
        tenant_id=sample.tenant_id,
        project_id=sample.project_id,
        key_id=sample.key_id,
        model_name="no\0such",
        endpoint="chat.completions",
        reason="balance_too_low",
        message="the balance is too low",
        status=402,
        limit="0.5",
        observed="0.75",
        retry_after_s=1.25,
    )
    data = journals.frames(incarnation_id, [refused, refused])
    journals.dead(tmp_path, incarnation_id, b"".join(data))
    settler = settler_of(shop, tmp_path)
    await settler.look()
    wanted = "model_name, reason, limit_value, observed_value, retry_after_ms"
    assert await shop.rows(f"SELECT {wanted} FROM refusal") == [
        ("no\ufffdsuch", "balance_too_low", "0.5", "0.75", 1250)
    ]
    assert settler.metrics.refusals.collect()[0].samples[0].value == 1
    assert await shop.rows("SELECT count(*) FROM parked_record") == [0]


async def test_a_torn_end_of_a_live_journal_is_waited_for(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    writer = await journals.live(tmp_path, incarnation_id, admitted, clock=shop.clock)
    last = journals.frames(incarnation_id, [settled(admitted)])[1]
    settler = settler_of(shop, tmp_path)
    journals.append(writer.path, last[:-3])
    assert [await settler.look(), await settler.look()] == [0, 0]
    journals.append(writer.path, last[-3:])
    assert await settler.look() == 1
    settler.close()
    await writer.close()


async def test_a_restarted_settler_reads_again_from_the_oldest_open_request(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    done = [shop.catalogue.admitted() for _ in range(3)]
    running = shop.catalogue.admitted()
    late = shop.catalogue.admitted()
    records = [done[0], settled(done[0]), running, done[1], settled(done[1]), late, settled(late)]
    writer = await journals.live(tmp_path, incarnation_id, *records, clock=shop.clock)
    first = settler_of(shop, tmp_path)
    assert await first.look() == 3
    first.close()
    [(posted, resume)] = await shop.rows("SELECT posted_offset, resume_offset FROM journal_position")
    assert posted == os.path.getsize(writer.path)
    [first_read, *_], _ = unpack(writer.path.read_bytes()[resume:], offset=resume)
    assert decode(first_read.payload) == running
    await journals.add(writer, settled(running))
    second = settler_of(shop, tmp_path)
    assert await second.look() == 1
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    await shop.assert_the_books_agree()
    second.close()
    await writer.close()


async def test_a_settler_that_finds_another_batch_unposted_after_a_crash_can_still_join_it(
    shop: Shop, tmp_path: Path
) -> None:
    """The position of a batch points before the admissions of the batches after it."""
    incarnation_id = await shop.incarnation()
    charges = [shop.catalogue.admitted() for _ in range(6)]
    records = [*charges, *(settled(admitted) for admitted in charges)]
    path = journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    await settler_of(shop, tmp_path, batch=2).look()
    [last] = await shop.rows("SELECT resume_offset FROM journal_position")
    assert last == os.path.getsize(tmp_path / "closed" / path.name)
    assert len(await shop.events(incarnation_id)) == 6


async def test_the_lag_is_the_age_of_the_oldest_settlement_that_is_not_posted(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    journals.dead(
        tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, [admitted, settled(admitted)]))
    )
    settler = settler_of(shop, tmp_path)
    assert settler.health()[1]["lag_ms"] == 0
    async with shop.owner.begin() as blocking:
        await blocking.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        await blocking.exec_driver_sql("ALTER TABLE usage_event RENAME TO hidden")
    with pytest.raises(REFUSALS, match="usage_event"):
        await settler.look()
    assert settler.health()[1]["lag_ms"] == shop.clock.now_ms() - (NOW_MS + 1500)
    async with shop.owner.begin() as blocking:
        await blocking.exec_driver_sql("ALTER TABLE hidden RENAME TO usage_event")
    assert await settler.look() == 1
    assert settler.health()[1]["lag_ms"] == 0


async def test_the_lag_does_not_vanish_between_what_was_read_before_an_outage_and_what_was_not(
    shop: Shop, tmp_path: Path
) -> None:
    lags: list[int] = []

    async def run_blocking(work: Any, *arguments: Any, **named: Any) -> Any:
        lags.append(settler.health()[1]["lag_ms"])
        return work(*arguments, **named)

    incarnation_id = await shop.incarnation()
    first, second = shop.catalogue.admitted(), shop.catalogue.admitted()
    writer = await journals.live(tmp_path, incarnation_id, first, settled(first), clock=shop.clock)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock, run_blocking=run_blocking)
    async with shop.owner.begin() as blocking:
        await blocking.exec_driver_sql("ALTER TABLE usage_event RENAME TO hidden")
    with pytest.raises(REFUSALS, match="usage_event"):
        await settler.look()
    async with shop.owner.begin() as blocking:
        await blocking.exec_driver_sql("ALTER TABLE hidden RENAME TO usage_event")
    await journals.add(writer, second, settled(second))
    lags.clear()
    assert await settler.look() == 2
    listing, reading, *_ = lags
    assert listing == reading == shop.clock.now_ms() - (NOW_MS + 1500)
    assert settler.health()[1]["lag_ms"] == 0
    settler.close()
    await writer.close()


async def test_a_dead_process_request_is_lost_with_its_furthest_reading(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    counted, silent = shop.catalogue.admitted(), shop.catalogue.admitted(input_bound=5, output_bound=6)
    far = Reading(counted.request_id, BackendId("bck_one"), Usage(800, output=40), 900)
    near = Reading(counted.request_id, far.backend_id, Usage(800, output=20), 500)
    records = [counted, silent, Progress(NOW_MS + 4000, (far,)), Progress(NOW_MS + 3000, (near,))]
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    settler = settler_of(shop, tmp_path)
    assert await settler.look() == 2
    wanted = "request_id, outcome, usage_source, input, output, bytes_relayed, duration_ms, unknown_bound"
    rows = {row[0]: row[1:] for row in await shop.rows(f"SELECT {wanted} FROM usage_event")}
    assert rows[counted.request_id] == ("lost", "engine_partial", 800, 40, 900, 4000, None)
    assert rows[silent.request_id][:3] == ("lost", "unknown", 0)
    assert rows[silent.request_id][-1] == {
        "input": 5,
        "input_cached": 0,
        "input_cache_write": 0,
        "output": 6,
    }
    assert await shop.outstanding(incarnation_id) == 0
    assert settler.metrics.lost.collect()[0].samples[0].value == 2
    await shop.assert_the_books_agree()


async def test_old_archived_journals_are_removed_after_a_week(shop: Shop, tmp_path: Path) -> None:
    first = await shop.incarnation()
    old = journals.dead(tmp_path, first, b"".join(journals.frames(first, [])))
    settler = settler_of(shop, tmp_path)
    await settler.look()
    assert (tmp_path / "closed" / old.name).exists()
    shop.clock.advance(7 * 24 * 3600 + 2)
    second = await shop.incarnation()
    journals.dead(tmp_path, second, b"".join(journals.frames(second, [])))
    await settler.look()
    assert [path.name for path in (tmp_path / "closed").iterdir()] == [f"{second}.journal"]
