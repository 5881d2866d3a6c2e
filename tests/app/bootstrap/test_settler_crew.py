"""The settler's hands: each journal is one's, together they are told as one, and none outlives the others."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from app.bootstrap.settler_crew import Crew
from app.core.ids import IncarnationId
from billing.journal.metrics import SettlerMetrics
from billing.journal.standing import Standing, together
from tests.app.bootstrap.test_settler import free_port, settler
from tests.billing.journal import journals
from tests.billing.journal.shop import Shop, open_shop, settled
from tests.database import Database

REQUESTS = 50
JOURNALS = 4


@pytest_asyncio.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with open_shop(database) as opened:
        yield opened


def fill(shop: Shop, folder: Path, incarnation_id: IncarnationId) -> None:
    charges = [shop.catalogue.admitted() for _ in range(REQUESTS)]
    records = [record for admitted in charges for record in (admitted, settled(admitted))]
    journals.dead(folder, incarnation_id, b"".join(journals.frames(incarnation_id, records)))


async def fill_all(shop: Shop, folder: Path) -> None:
    for _ in range(JOURNALS):
        fill(shop, folder, await shop.incarnation(lent=10**15 // 10))


async def until_put_away(folder: Path) -> None:
    while len(list(folder.glob("closed/*.journal"))) < JOURNALS:
        await asyncio.sleep(0.01)


def hands_of(process: asyncio.subprocess.Process) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


async def hand_of(process: asyncio.subprocess.Process) -> int:
    while not (hands := hands_of(process)):
        await asyncio.sleep(0.01)
    return hands[0]


async def metrics_of(port: int) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{port}/metrics")).text


async def test_journals_are_shared_out_posted_once_and_counted_together(shop: Shop, tmp_path: Path) -> None:
    await fill_all(shop, tmp_path)
    port = free_port()
    async with settler(shop, tmp_path, port=port) as process:
        await until_put_away(tmp_path)
        while f"steelyard_settler_posted_total {JOURNALS * REQUESTS}.0" not in await metrics_of(port):
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert await shop.rows("SELECT count(*) FROM usage_event") == [JOURNALS * REQUESTS]
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    await shop.assert_the_books_agree()


async def test_a_hand_that_is_killed_ends_its_chief_and_the_next_crew_posts_the_rest(
    shop: Shop, tmp_path: Path
) -> None:
    async with settler(shop, tmp_path) as process:
        os.kill(await hand_of(process), signal.SIGKILL)
        assert await process.wait() != 0
    await fill_all(shop, tmp_path)
    async with settler(shop, tmp_path):
        await until_put_away(tmp_path)
    assert await shop.rows("SELECT count(*) FROM usage_event") == [JOURNALS * REQUESTS]
    await shop.assert_the_books_agree()


async def test_a_hand_keeps_the_lock_until_it_has_followed_its_killed_chief(
    shop: Shop, tmp_path: Path
) -> None:
    async with settler(shop, tmp_path) as process:
        hand = await hand_of(process)
        os.kill(hand, signal.SIGSTOP)
        process.kill()
        await process.wait()
        with (tmp_path / "settler.lock").open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.kill(hand, signal.SIGCONT)
            await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)


def test_without_hands_all_journals_are_the_chiefs(tmp_path: Path) -> None:
    paths = [tmp_path / f"inc_{number}.journal" for number in range(3)]
    assert Crew().share(paths) == paths


def test_a_company_stands_where_its_last_one_stands() -> None:
    first = Standing(oldest_ms=5_000, journals=2, unfreed=1, stopped={"inc_1": "newer"})
    second = Standing(oldest_ms=3_000, journals=1, stopped={"inc_2": "damaged"}, failure="gone")
    both = together([Standing(), first, second])
    assert (both.journals, both.unfreed, both.stopped) == (3, 1, {"inc_1": "newer", "inc_2": "damaged"})
    assert both.health(4_000) == (
        False,
        {"lag_ms": 1_000, "journals": 3, "stopped_journals": both.stopped, "failure": "gone"},
    )


def test_what_others_counted_is_counted_once() -> None:
    metrics = SettlerMetrics()
    metrics.posted.inc(1)
    for told in (3.0, 3.0, 5.0):
        metrics.take_over({"posted": told})
    assert metrics.counts()["posted"] == 6
