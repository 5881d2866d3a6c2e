"""The borrower against a real authority: several processes are several borrowers of one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from app.core.ids import AllowanceId, incarnation_id
from billing.quota.borrower import Borrower
from billing.quota.leases import Hold, Leases
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
