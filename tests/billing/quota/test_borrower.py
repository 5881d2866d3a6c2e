"""The borrower against a real authority: several processes are several borrowers of one database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from app.core.errors import Conflict, DependencyError
from app.core.ids import AllowanceId, incarnation_id
from billing.quota.borrower import Borrower
from billing.quota.lease import Hold
from billing.quota.leases import Leases
from billing.quota.model import Denied, Need
from tests.billing.quota.desk import Desk


class Process:
    """A gateway process, as far as quota is concerned."""

    def __init__(self, desk: Desk, *, bound_s: float = 0.15, renew_s: float = 0.25) -> None:
        self.desk = desk
        self.id = incarnation_id()
        self.leases = Leases()
        self.was_closed = asyncio.Event()
        self.borrower = Borrower(
            desk.pool,
            leases=self.leases,
            incarnation_id=self.id,
            recall_bound_s=bound_s,
            lease_renew_s=renew_s,
            on_closed=self.was_closed.set,
        )

    async def ask(self, *needs: tuple[AllowanceId, int]) -> Hold | Denied:
        return await self.borrower.ask([Need(allowance, amount) for allowance, amount in needs])

    def settle(self, hold: Hold, used: int) -> None:
        self.leases.settle(hold, {need.allowance_id: used for need in hold.needs}).durable()


@asynccontextmanager
async def listening(desk: Desk, *processes: Process) -> AsyncIterator[None]:
    """Hand notifications to the processes, as the gateway's listener does."""
    connection = await asyncpg.connect(desk.url)

    def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        kind, _, row_id = str(payload).partition(":")
        assert kind == "allowance"
        for process in processes:
            process.borrower.notice(AllowanceId(row_id))

    await connection.add_listener("steelyard_changes", heard)
    try:
        yield
    finally:
        await connection.close()


@asynccontextmanager
async def running(desk: Desk, *processes: Process) -> AsyncIterator[None]:
    """The processes registered and listening; closed at the end."""
    async with listening(desk, *processes):
        for process in processes:
            await process.borrower.register("test")
        try:
            yield
        finally:
            for process in processes:
                await process.borrower.close()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_an_asked_need_is_held_and_what_it_frees_serves_the_next_from_memory(desk: Desk) -> None:
    allowance, process = await desk.allowance(1000), Process(desk)
    async with running(desk, process):
        hold = await process.ask((allowance, 100))
        assert isinstance(hold, Hold)
        process.settle(hold, 10)
        assert process.leases.admit([Need(allowance, 90)]) is not None


async def test_a_holder_gives_back_in_time_for_a_starved_process(desk: Desk) -> None:
    allowance, rich, poor = await desk.allowance(100), Process(desk), Process(desk, bound_s=5)
    async with running(desk, rich, poor):
        hold = await rich.ask((allowance, 90))
        assert isinstance(hold, Hold)
        process_free = rich.leases.lease(allowance)
        rich.settle(hold, 0)
        assert process_free.free >= 90
        assert isinstance(await poor.ask((allowance, 95)), Hold)


async def test_a_clean_shutdown_returns_all_and_needs_no_one(desk: Desk) -> None:
    allowance, process = await desk.allowance(100), Process(desk)
    async with running(desk, process):
        hold = await process.ask((allowance, 60))
        assert isinstance(hold, Hold)
        process.settle(hold, 20)
    assert await desk.outstanding(process.id) == {allowance: 20}
    assert process.leases.admit([Need(allowance, 1)]) is None


async def test_a_denial_says_the_limit_and_what_is_available(desk: Desk) -> None:
    allowance, process = await desk.allowance(100), Process(desk, bound_s=0.02)
    async with running(desk, process):
        first = await process.ask((allowance, 70))
        assert isinstance(first, Hold)
        assert await process.ask((allowance, 101)) == Denied(allowance, 100, 30, None)
        assert await process.ask((allowance, 90)) == Denied(allowance, 100, 30, 1.0)


async def test_requests_that_wait_together_share_their_round_trips(desk: Desk) -> None:
    allowance, process = await desk.allowance(10**6), Process(desk)
    async with running(desk, process):
        outcomes = await asyncio.gather(*(process.ask((allowance, 10)) for _ in range(100)))
        assert all(isinstance(outcome, Hold) for outcome in outcomes)
        assert process.borrower.syncs < 20


async def test_two_processes_that_both_need_all_get_it_one_after_the_other(desk: Desk) -> None:
    allowance, first, second = await desk.allowance(3), Process(desk, bound_s=5), Process(desk, bound_s=5)
    async with running(desk, first, second):
        for process, amount in ((first, 2), (second, 1)):
            hold = await process.ask((allowance, amount))
            assert isinstance(hold, Hold)
            process.settle(hold, 0)
        asks = [asyncio.create_task(process.ask((allowance, 3))) for process in (first, second)]
        done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        winner = asks.index(next(iter(done)))
        hold = asks[winner].result()
        assert isinstance(hold, Hold)
        (first, second)[winner].settle(hold, 0)
        assert isinstance(await asks[1 - winner], Hold)


async def test_an_asker_that_goes_away_leaves_nothing_held(desk: Desk) -> None:
    allowance, rich, poor = await desk.allowance(10), Process(desk), Process(desk, bound_s=30)
    async with running(desk, rich, poor):
        hold = await rich.ask((allowance, 10))
        assert isinstance(hold, Hold)
        task = asyncio.create_task(poor.ask((allowance, 4)))
        await eventually(lambda: answered(poor))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert poor.borrower.waiting == 0
        rich.settle(hold, 0)
    lease = poor.leases.lease(allowance)
    assert (lease.held, lease.waiting) == (0, 0)
    assert (await desk.status(allowance)).available == 10


async def test_a_grant_that_meets_a_cancelled_asker_goes_back(desk: Desk) -> None:
    allowance, process = await desk.allowance(10), Process(desk, bound_s=30)
    async with running(desk, process):
        hold = await process.ask((allowance, 10))
        assert isinstance(hold, Hold)
        task = asyncio.create_task(process.ask((allowance, 4)))
        await eventually(lambda: answered(process, 2))
        task.cancel()
        process.settle(hold, 0)  # serves the asker in the same breath
        await asyncio.wait([task])
        assert process.leases.lease(allowance).held == 0


async def test_a_raised_limit_wakes_who_waits(desk: Desk) -> None:
    allowance, rich, poor = await desk.allowance(10), Process(desk), Process(desk, bound_s=30)
    async with running(desk, rich, poor):
        assert isinstance(await rich.ask((allowance, 8)), Hold)
        task = asyncio.create_task(poor.ask((allowance, 9)))
        await eventually(lambda: answered(poor))
        await desk.change_limit(allowance, by=7)
        assert isinstance(await task, Hold)


async def test_a_broken_connection_costs_no_request(desk: Desk) -> None:
    allowance, process = await desk.allowance(100), Process(desk)
    async with running(desk, process):
        assert isinstance(await process.ask((allowance, 1)), Hold)
        await desk.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%quota_sync%' AND pid <> pg_backend_pid()"
        )
        assert isinstance(await process.ask((allowance, 90)), Hold)
        assert not process.borrower.cut_off


async def test_a_process_cut_off_admits_from_its_leases_and_never_opens(desk: Desk) -> None:
    """And is itself again when the authority answers again."""
    allowance, process = await desk.allowance(100), Process(desk, renew_s=0.05)
    async with running(desk, process):
        hold = await process.ask((allowance, 40))
        assert isinstance(hold, Hold)
        process.settle(hold, 0)
        async with desk.pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT FROM incarnation WHERE id = $1 FOR UPDATE", process.id)
            await eventually(lambda: cut_off(process))
            denied = await process.ask((allowance, 100))
            assert isinstance(denied, Denied)
            assert (denied.cut_off, denied.limit, denied.retry_after_s) == (True, 100, 1.0)
            kept = process.leases.admit([Need(allowance, 1)])
            assert kept is not None
            process.settle(kept, 0)
        await eventually(lambda: reached(process))
        assert isinstance(await process.ask((allowance, 100)), Hold)


async def test_an_operators_release_ends_the_incarnation_of_a_living_process(desk: Desk) -> None:
    allowance, process = await desk.allowance(100), Process(desk)
    async with running(desk, process):
        assert isinstance(await process.ask((allowance, 40)), Hold)
        await desk.close(process.id, released=True)
        denied = await process.ask((allowance, 90))
        assert isinstance(denied, Denied)
        assert denied.cut_off
        assert process.was_closed.is_set()
        assert process.leases.admit([Need(allowance, 0)]) is None


async def test_idle_leases_go_back(desk: Desk) -> None:
    allowance, process = await desk.allowance(100), Process(desk, renew_s=0.05)
    async with running(desk, process):
        hold = await process.ask((allowance, 40))
        assert isinstance(hold, Hold)
        process.settle(hold, 0)

        async def all_back() -> bool:
            return (await desk.status(allowance)).outstanding == 0

        await eventually(all_back)


async def test_what_is_watched_is_borrowed_before_it_is_asked_for(desk: Desk) -> None:
    allowance, process = await desk.allowance(1000), Process(desk)
    async with running(desk, process):
        process.borrower.watch([Need(allowance, 10)])

        async def borrowed() -> bool:
            return process.leases.lease(allowance).free >= 10

        await eventually(borrowed)
        assert process.borrower.asks == 0


async def test_an_incarnation_that_was_closed_before_cannot_register(desk: Desk) -> None:
    process = Process(desk)
    await desk.close(process.id)
    with pytest.raises(Conflict):
        await process.borrower.register("test")
    await process.borrower.close()


async def test_registering_without_an_authority_says_so(desk: Desk) -> None:
    process = Process(desk)
    await desk.pool.close()
    with pytest.raises(DependencyError):
        await process.borrower.register("test")


async def test_processes_under_load_spend_what_they_used_and_never_pass_the_limit(desk: Desk) -> None:
    allowance, processes = await desk.allowance(500), [Process(desk, bound_s=0.05) for _ in range(3)]
    used: list[int] = []

    async def requests(process: Process, draw: random.Random) -> None:
        for _ in range(40):
            hold = await process.ask((allowance, 10 + draw.randrange(20)))
            if isinstance(hold, Hold):
                await asyncio.sleep(0)
                amount = min(draw.randrange(20), hold.needs[0].amount)
                used.append(amount)
                await desk.post(process.id, (allowance, min(hold.needs[0].amount, amount), amount))
                process.settle(hold, amount)

    async with running(desk, *processes):
        await asyncio.gather(*(requests(p, random.Random(seed)) for seed, p in enumerate(processes)))
    status = await desk.status(allowance)
    assert status.spent == sum(used) <= 500
    assert (status.outstanding, status.unleased, await desk.uncovered()) == (0, 0, 0)
    assert status.available < 30, "and the limit was reached"


async def answered(process: Process, syncs: int = 1) -> bool:
    """The process' ask was denied for now: nothing is under way and it waits."""
    return process.borrower.syncs >= syncs and process.borrower.waiting == 1 and not process.borrower.busy


async def cut_off(process: Process) -> bool:
    return process.borrower.cut_off


async def reached(process: Process) -> bool:
    return not process.borrower.cut_off
