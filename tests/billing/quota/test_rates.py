"""Rates and concurrency on real PostgreSQL: the bucket, its leases and their end, over several processes."""

from __future__ import annotations

import asyncio
from datetime import datetime

import asyncpg
import pytest

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.lease import Hold
from billing.quota.model import Denied, LeaseReport, Need, Rate, Sync
from billing.quota.wire import arguments, read_answer
from tests.billing.quota.desk import SYNC, Desk
from tests.billing.quota.test_borrower import Process, eventually, running
from tests.billing.quota.test_races import blocked

RATE = Rate(per_minute=6, burst=10)
"""So slow that a test's own time gives nothing: one in ten seconds."""


def asking(sequence: int, allowance: AllowanceId, amount: int) -> Sync:
    return Sync(sequence, (), ((Need(allowance, amount, RATE),),))


def saying(
    sequence: int, allowance: AllowanceId, *, returned: int = 0, consumed: int = 0, epoch: int = 1
) -> Sync:
    return Sync(sequence, (LeaseReport(allowance, returned, 0, consumed, epoch),), ())


async def borrowed(desk: Desk, amount: int) -> tuple[AllowanceId, IncarnationId]:
    """A rate, and an incarnation that has borrowed `amount` of it with its first message."""
    allowance, incarnation = await desk.rate(RATE), await desk.incarnation()
    assert (await desk.sync(incarnation, asking(1, allowance, amount))).asks == ((),)
    return allowance, incarnation


async def test_what_is_lent_leaves_the_bucket_and_what_returns_fills_it(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 8)
    answer = await desk.sync(incarnation, saying(2, allowance, returned=3, consumed=4))
    state = answer.leases[0]
    assert (state.granted, state.settled, state.returned, state.epoch) == (8, 4, 3, 1)
    assert (state.limit, state.available, state.limit - state.spent, state.holders) == (6, 5, 6, 1)
    status = await desk.status(allowance)
    assert (status.limit, status.outstanding, status.available, status.spent) == (6, 1, 5, 0)


async def test_a_bucket_fills_all_the_time_but_not_where_something_is_lent(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 9)
    await desk.sync(incarnation, saying(2, allowance, consumed=7))
    await desk.age(allowance, seconds=5)
    assert (await desk.status(allowance)).available == 1
    await desk.age(allowance, seconds=600)
    assert (await desk.status(allowance)).available == 10, "the lease has ended by then"


async def test_a_need_beyond_what_is_in_bucket_and_leases_is_denied_and_recalls_nothing(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 4)
    await desk.sync(incarnation, saying(2, allowance, consumed=3))
    async with desk.hearing() as heard:
        answer = await desk.sync(await desk.incarnation(), asking(1, allowance, 8))
        assert (answer.asks, answer.leases[0].recall_ms) == (((allowance,),), 0)
        assert await heard() == []


async def test_what_others_have_of_a_rate_is_recalled(desk: Desk) -> None:
    allowance, _ = await borrowed(desk, 4)
    async with desk.hearing() as heard:
        answer = await desk.sync(await desk.incarnation(), asking(1, allowance, 8))
        assert answer.leases[0].recall_ms > 0
        assert await heard() == [f"allowance:{allowance}"]


async def test_a_lost_machines_lease_ends_and_another_follows(desk: Desk) -> None:
    allowance, lost = await borrowed(desk, 10)
    await desk.age(allowance, seconds=5.9)
    other = await desk.incarnation()
    assert (await desk.sync(other, asking(1, allowance, 1))).asks == ((allowance,),)
    await desk.age(allowance, seconds=0.2 + 20)
    assert (await desk.sync(other, asking(2, allowance, 2))).asks == ((),)
    late = await desk.sync(lost, saying(2, allowance, returned=10))
    assert (late.leases[0].epoch, late.leases[0].granted) == (0, 0)
    again = await desk.sync(lost, asking(3, allowance, 0))
    assert again.asks == ((),)
    assert (await desk.status(allowance)).outstanding == 2, "an old total returns nothing"


async def test_a_message_keeps_a_lease_alive_and_an_old_one_does_not(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 10)
    await desk.age(allowance, seconds=5)
    await desk.sync(incarnation, saying(2, allowance))
    await desk.age(allowance, seconds=5)
    await desk.sync(incarnation, saying(2, allowance))
    assert (await desk.status(allowance)).outstanding == 10
    await desk.age(allowance, seconds=2)
    answer = await desk.sync(await desk.incarnation(), asking(1, allowance, 1))
    assert answer.leases[0].holders == 0
    assert (await desk.status(allowance)).outstanding == 0


async def test_the_time_is_read_after_the_lock(desk: Desk) -> None:
    allowance, first = await borrowed(desk, 1)
    second = await desk.incarnation()
    async with desk.pool.acquire() as connection:
        async with connection.transaction():
            await connection.fetchval(SYNC, *arguments(first, saying(2, allowance)))
            task = asyncio.create_task(desk.sync(second, asking(1, allowance, 1)))
            await blocked(desk)
            freed_at: datetime | None = await connection.fetchval("SELECT clock_timestamp()")
        await task
    assert freed_at is not None
    heard_at = await desk.pool.fetchval("SELECT heard_at FROM lease WHERE incarnation_id = $1", second)
    assert heard_at > freed_at


async def test_a_doubled_renewal_gives_once_and_consumes_once(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 4)
    message = Sync(2, (LeaseReport(allowance, 0, 1, 3, 1),), ())
    one, two = await asyncio.gather(desk.sync(incarnation, message), desk.sync(incarnation, message))
    assert (one.leases[0].granted, one.leases[0].settled) == (5, 3)
    assert (two.leases[0].granted, two.leases[0].settled) == (5, 3)


async def test_what_a_dead_process_did_not_report_was_consumed(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 7)
    await desk.close(incarnation)
    status = await desk.status(allowance)
    assert (status.outstanding, status.available) == (0, 3)
    assert await desk.pool.fetchval("SELECT count(*) FROM lease WHERE epoch > 0") == 0


async def test_a_released_machines_lease_of_a_rate_ends_by_time(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 7)
    assert await desk.outstanding(incarnation) == {}, "its release costs no money"
    await desk.close(incarnation, released=True)
    assert (await desk.status(allowance)).outstanding == 7
    assert (await desk.sync(incarnation, saying(2, allowance, returned=7))).closed
    await desk.age(allowance, seconds=7)
    await desk.sync(await desk.incarnation(), asking(1, allowance, 1))
    assert (await desk.status(allowance)).available == 2


async def test_only_leases_of_rates_may_be_removed(desk: Desk) -> None:
    wallet, (_, incarnation) = await desk.allowance(5), await borrowed(desk, 7)
    await desk.sync(incarnation, Sync(2, (), ((Need(wallet, 1),),)))
    await desk.pool.execute("DELETE FROM lease WHERE epoch > 0")
    with pytest.raises(asyncpg.RestrictViolationError):
        await desk.pool.execute("DELETE FROM lease")


async def test_a_lowered_burst_lends_no_more_than_fits_into_it(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 4)
    await desk.pool.execute("UPDATE allowance SET burst = 5 WHERE id = $1", allowance)
    answer = await desk.sync(await desk.incarnation(), asking(1, allowance, 2))
    assert answer.asks == ((allowance,),)
    assert answer.leases[0].available == 1
    await desk.pool.execute("UPDATE allowance SET burst = 2 WHERE id = $1", allowance)
    assert (await desk.sync(incarnation, saying(2, allowance))).leases[0].available == 0


async def test_one_a_minute_is_exact_over_two_processes_and_says_when_to_come_back(desk: Desk) -> None:
    rate = Rate(per_minute=1, burst=1)
    allowance, first, second = await desk.rate(rate), Process(desk), Process(desk)
    need = [Need(allowance, 1, rate)]
    async with running(desk, first, second):
        hold = await first.borrower.ask(need)
        assert isinstance(hold, Hold)
        first.leases.consume(hold, allowance, total=1)
        first.leases.settle(hold, {})
        wait_s = 0.0
        for process in (first, second, first, second):
            denied = await process.borrower.ask(need)
            assert isinstance(denied, Denied)
            assert denied.limit == 1
            wait_s = denied.retry_after_s or 0.0
            assert 55 < wait_s <= 60
        await desk.age(allowance, seconds=wait_s)
        assert isinstance(await second.borrower.ask(need), Hold)


async def test_an_exhausted_rate_costs_no_wait_for_what_nobody_can_give_back(desk: Desk) -> None:
    allowance, first, second = await desk.rate(RATE), Process(desk), Process(desk, bound_s=3600)
    async with running(desk, first, second):
        hold = await first.borrower.ask([Need(allowance, 10, RATE)])
        assert isinstance(hold, Hold)
        first.leases.settle(hold, {allowance: 10})

        async def reported() -> bool:
            return (await desk.status(allowance)).outstanding == 0

        await eventually(reported)
        assert isinstance(await second.borrower.ask([Need(allowance, 5, RATE)]), Denied)


async def test_concurrency_is_exact_over_two_processes_and_nothing_is_spent(desk: Desk) -> None:
    allowance, first, second = await desk.allowance(3), Process(desk), Process(desk, bound_s=3600)
    async with running(desk, first, second):
        holds = [await first.ask((allowance, 1)) for _ in range(3)]
        waiting = asyncio.create_task(second.ask((allowance, 1)))

        async def waits() -> bool:
            return second.borrower.waiting == 1 and second.borrower.syncs > 0 and not second.borrower.busy

        await eventually(waits)
        assert isinstance(holds[0], Hold)
        first.settle(holds[0], 0)
        await desk.post(first.id, (allowance, 0, 0))
        assert isinstance(await waiting, Hold)
    assert (await desk.status(allowance)).spent == 0


async def test_a_process_forgets_what_is_idle_and_settled(desk: Desk) -> None:
    """And its next request of it is as its first."""
    wallet, rate, process = await desk.allowance(100), await desk.rate(RATE), Process(desk, renew_s=0.05)
    needs = [Need(wallet, 5), Need(rate, 5, RATE)]
    async with running(desk, process):
        hold = await process.borrower.ask(needs)
        assert isinstance(hold, Hold)
        process.leases.settle(hold, {wallet: 2, rate: 2}).durable()
        await desk.post(process.id, (wallet, 2, 2))

        async def forgotten() -> bool:
            return not len(process.leases)

        await eventually(forgotten)
        assert await desk.outstanding(process.id) == {}
        assert isinstance(await process.borrower.ask(needs), Hold)
        assert process.leases.lease(wallet).held == 5


async def test_an_answer_costs_no_more_columns_for_a_wallet_than_it_needs(desk: Desk) -> None:
    wallet, rate, incarnation = await desk.allowance(5), await desk.rate(RATE), await desk.incarnation()
    message = Sync(1, (), ((Need(wallet, 1), Need(rate, 1, RATE)),))
    text = await desk.pool.fetchval(SYNC, *arguments(incarnation, message))
    by_id = {state.allowance_id: state for state in read_answer(text).leases}
    assert (by_id[wallet].epoch, by_id[rate].epoch) == (0, 1)
    assert by_id[rate].level_micros // 1_000_000 == 9
