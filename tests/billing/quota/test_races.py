"""Sessions that meet: the locks order them, so no limit is passed and none waits for another in a ring."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import Need, Sync
from billing.quota.wire import arguments, read_answer
from tests.billing.quota.desk import SYNC, Desk

ROUNDS = 50


def asking(sequence: int, allowance: AllowanceId, amount: int) -> Sync:
    return Sync(sequence, (), ((Need(allowance, amount),),))


async def blocked(desk: Desk) -> None:
    """Until a session of this database waits for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(10):
        while not await desk.pool.fetchval(query):
            await asyncio.sleep(0.005)


async def second_while_first_is_open(
    desk: Desk, first: tuple[IncarnationId, Sync], second: tuple[IncarnationId, Sync]
) -> tuple[object, object]:
    """What lacked in two messages of which the second begins before the first has committed."""
    async with desk.pool.acquire() as connection:
        async with connection.transaction():
            one = read_answer(await connection.fetchval(SYNC, *arguments(*first)))
            task = asyncio.create_task(desk.sync(*second))
            await blocked(desk)
            await connection.execute("SELECT pg_sleep(0.05)")
        return one.asks, (await task).asks


async def test_two_sessions_that_grant_at_once_stay_within_the_limit(desk: Desk) -> None:
    allowance = await desk.allowance(5)
    first, second = await desk.incarnation(), await desk.incarnation()
    verdicts = await second_while_first_is_open(
        desk, (first, asking(1, allowance, 4)), (second, asking(1, allowance, 4))
    )
    assert verdicts == (((),), ((allowance,),))
    assert (await desk.status(allowance)).available == 1


async def test_the_same_sync_twice_on_two_connections_gives_once(desk: Desk) -> None:
    allowance, incarnation = await desk.allowance(9), await desk.incarnation()
    message = (incarnation, asking(1, allowance, 4))
    assert await second_while_first_is_open(desk, message, message) == (((),), None)
    assert (await desk.status(allowance)).outstanding == 4


async def test_a_sync_that_waits_for_a_close_is_given_nothing(desk: Desk) -> None:
    allowance, incarnation = await desk.allowance(9), await desk.incarnation()
    async with desk.pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("SELECT quota_close($1, '{}', '{}', false)", incarnation)
            task = asyncio.create_task(desk.sync(incarnation, asking(1, allowance, 4)))
            await blocked(desk)
        assert (await task).closed
    assert (await desk.status(allowance)).outstanding == 0


async def test_grants_posts_and_closes_in_opposite_order_never_deadlock(desk: Desk) -> None:
    a, b = await desk.allowance(10**9, scope="a"), await desk.allowance(10**9, scope="b")
    living, posting = await desk.incarnation(), await desk.incarnation()
    dying = [await desk.incarnation() for _ in range(ROUNDS)]
    for incarnation in (posting, *dying):
        await desk.sync(incarnation, Sync(1, (), ((Need(a, 1000), Need(b, 1000)),)))

    async def grants(order: tuple[AllowanceId, ...]) -> None:
        for sequence in range(ROUNDS):
            await desk.sync(living, Sync(sequence, (), (tuple(Need(x, 1) for x in order),)))

    async def posts(order: tuple[AllowanceId, ...]) -> None:
        for _ in range(ROUNDS):
            await desk.post(posting, *((x, 1, 1) for x in order))

    async def closes() -> None:
        for incarnation in dying:
            await desk.close(incarnation)

    sessions: list[Awaitable[None]] = [grants((a, b)), grants((b, a)), posts((b, a)), posts((a, b)), closes()]
    await asyncio.gather(*sessions)
    for allowance in (a, b):
        status = await desk.status(allowance)
        assert (status.spent, status.unleased) == (2 * ROUNDS, 0)
        living_has = (await desk.outstanding(living))[allowance]
        assert status.outstanding == 1000 - 2 * ROUNDS + living_has
