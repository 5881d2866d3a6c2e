"""What has had its time goes; what has not stays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select

from app.core.clock import from_ms
from app.identity import pruning
from app.identity.pruning import KEEP_ANSWERS, Pruned, prune
from app.identity.tables import idempotency_key, member, session
from app.workers.pruning import prune_rows
from tests.app.control.world import World


async def _insert(world: World, table: Table, *rows: dict[str, Any]) -> None:
    async with world.engine.begin() as connection:
        await connection.execute(insert(table), list(rows))


async def _count(world: World, table: Table) -> int:
    async with world.engine.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def _pruned(world: World) -> Pruned:
    async with world.engine.begin() as connection:
        return await prune(connection, now=from_ms(world.clock.now_ms()))


def _answer(key: str, age: timedelta, world: World) -> dict[str, Any]:
    stored = {"actor": "mem_a", "key": key, "request_hash": b"h", "status": 201, "response": {}}
    return stored | {"created_at": from_ms(world.clock.now_ms()) - age}


async def test_a_stored_answer_goes_after_thirty_days(world: World) -> None:
    second = timedelta(seconds=1)
    await _insert(
        world, idempotency_key, *(_answer(str(a), KEEP_ANSWERS + a, world) for a in (-second, second))
    )
    assert await _pruned(world) == Pruned(idempotency_keys=1, sessions=0)
    assert await _count(world, idempotency_key) == 1


async def test_a_session_goes_once_it_has_ended(world: World) -> None:
    now = from_ms(world.clock.now_ms())
    async with world.engine.connect() as connection:
        [owner] = (await connection.execute(select(member.c.id))).scalars()
    ends = {b"over": now, b"live": now + timedelta(seconds=1)}
    await _insert(
        world,
        session,
        *({"digest": name, "member_id": owner, "expires_at": end} for name, end in ends.items()),
    )
    assert await _pruned(world) == Pruned(idempotency_keys=0, sessions=1)
    assert await _count(world, session) == 1


async def test_a_row_that_somebody_holds_is_left_for_another_time(world: World) -> None:
    await _insert(world, idempotency_key, _answer("held", KEEP_ANSWERS * 2, world))
    async with world.engine.begin() as holder:
        await holder.execute(select(idempotency_key).with_for_update())
        assert await _pruned(world) == Pruned(0, 0)
    assert await _pruned(world) == Pruned(1, 0)


async def test_a_heap_of_old_rows_goes_batch_by_batch(world: World) -> None:
    rows = [_answer(str(number), KEEP_ANSWERS * 2, world) for number in range(pruning.BATCH + 1)]
    await _insert(world, idempotency_key, *rows)
    assert await _pruned(world) == Pruned(pruning.BATCH, 0)
    assert await _pruned(world) == Pruned(1, 0)


@pytest.mark.parametrize("count", [0, 3])
async def test_the_task_says_how_much_is_gone(world: World, count: int) -> None:
    if count:
        await _insert(
            world, idempotency_key, *(_answer(str(n), KEEP_ANSWERS * 2, world) for n in range(count))
        )
    gone = await asyncio.to_thread(prune_rows, world.database.app_url, clock=world.clock)
    assert gone == Pruned(count, 0)
