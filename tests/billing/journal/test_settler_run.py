"""The settler's loop keeps trying while PostgreSQL is away, and loses nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg

from app.stack.postgres import SUPERUSER
from billing.journal.settler import Settler
from tests.billing.journal import journals
from tests.billing.journal.shop import Shop, settled
from tests.database import Server


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_what_happened_while_the_database_was_away_is_posted_when_it_is_back(
    shop: Shop, tmp_path: Path, database_server: Server
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = [shop.catalogue.admitted() for _ in range(3)]
    writer = await journals.live(tmp_path, incarnation_id, *admitted, clock=shop.clock)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    stop = asyncio.Event()
    running = asyncio.create_task(settler.run(stop, interval_s=0.01))
    await until(lambda: settler.health()[1]["journals"] == 1)
    name = shop.database.name
    admin = await asyncpg.connect(database_server.postgres.url("postgres", role=SUPERUSER))
    try:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        await journals.add(writer, *(settled(each) for each in admitted))
        await until(lambda: settler.failure is not None and settler.health()[1]["lag_ms"] > 0)
        assert not settler.health()[0]
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        await admin.close()
    await until(lambda: settler.failure is None and settler.health()[1]["lag_ms"] == 0)
    stop.set()
    await running
    assert set(await shop.events(incarnation_id)) == {each.request_id for each in admitted}
    await shop.assert_the_books_agree()
    settler.close()
    await writer.close()


async def test_one_journal_that_fails_does_not_hold_up_the_others(shop: Shop, tmp_path: Path) -> None:
    good = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    (tmp_path / "inc_0.journal").mkdir()  # can be opened and not be read
    journals.dead(tmp_path, good, b"".join(journals.frames(good, [admitted, settled(admitted)])))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    stop = asyncio.Event()
    running = asyncio.create_task(settler.run(stop, interval_s=0.01))
    await until(lambda: settler.failure is not None)
    stop.set()
    await running
    assert settler.failure is not None
    assert settler.failure.startswith("IsADirectoryError")
    assert set(await shop.events(good)) == {admitted.request_id}
    settler.close()
