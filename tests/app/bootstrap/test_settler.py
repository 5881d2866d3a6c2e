"""The settler's process: killed amid a batch it loses nothing, asked to stop it stops, one runs at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest_asyncio

from app.core.ids import IncarnationId
from tests.billing.journal import journals
from tests.billing.journal.shop import Shop, open_shop, settled
from tests.database import Database

ROOT = Path(__file__).parents[3]
REQUESTS = 9_000
BATCH = 2_000
"""Several transactions' worth lie in the journal, in one reading."""
_PROGRAM = f"import asyncio; from app.bootstrap.settler import main; asyncio.run(main(batch={BATCH}))"


@pytest_asyncio.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with open_shop(database) as opened:
        yield opened


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def settler(shop: Shop, folder: Path, *, port: int = 0) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process of a machine's settler; killed at the end if it still runs."""
    environment = {
        **os.environ,
        "STEELYARD_DATABASE_URL": shop.database.app_url,
        "STEELYARD_JOURNAL_DIR": str(folder),
        "STEELYARD_METRICS_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        cwd=ROOT,
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def posted(shop: Shop) -> int:
    return int((await shop.rows("SELECT count(*) FROM usage_event"))[0])


async def until_posted(shop: Shop, more_than: int) -> int:
    while (number := await posted(shop)) <= more_than:
        await asyncio.sleep(0.005)
    return number


async def until_posting(shop: Shop, *, more_than: int) -> None:
    """Until a batch is on its way into the table after so many events; or there is nothing left to post."""
    locks = (
        "SELECT count(*) FROM pg_locks WHERE relation = 'usage_event'::regclass AND mode = 'RowExclusiveLock'"
    )
    while (number := await posted(shop)) <= more_than or await shop.rows(locks) == [0]:
        if number == REQUESTS:
            return
        await asyncio.sleep(0)


def fill(shop: Shop, folder: Path, incarnation_id: IncarnationId) -> int:
    """A journal with many settled requests; returns the picos that they cost."""
    charges = [shop.catalogue.admitted() for _ in range(REQUESTS)]
    records = [record for admitted in charges for record in (admitted, settled(admitted))]
    journals.dead(folder, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    return sum(settled(admitted).cost_picos for admitted in charges)


async def test_a_settler_that_is_killed_between_and_within_batches_posts_all_once(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation(lent=10**15 // 2)
    price = fill(shop, tmp_path, incarnation_id)
    for moment in (until_posting(shop, more_than=-1), until_posting(shop, more_than=0)):
        async with settler(shop, tmp_path) as process:
            await moment
            process.send_signal(signal.SIGKILL)
            await process.wait()
    assert 0 < await posted(shop) < REQUESTS
    async with settler(shop, tmp_path):
        await until_posted(shop, REQUESTS - 1)
        while list(tmp_path.glob("*.journal")):
            await asyncio.sleep(0.01)
    assert await shop.rows("SELECT count(*), sum(cost)::bigint FROM usage_event") == [(REQUESTS, price)]
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    assert await shop.outstanding(incarnation_id) == 0
    await shop.assert_the_books_agree()


async def test_it_tells_its_health_and_metrics_and_stops_when_asked(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    writer = await journals.live(tmp_path, incarnation_id, admitted, settled(admitted), clock=shop.clock)
    port = free_port()
    async with settler(shop, tmp_path, port=port) as process, httpx.AsyncClient() as client:
        await until_posted(shop, 0)
        while (health := await client.get(f"http://127.0.0.1:{port}/health")).status_code == 503:
            assert health.json()["failure"] == "a hand has not begun yet"
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert health.json()["journals"] == 1
        metrics = await client.get(f"http://127.0.0.1:{port}/metrics")
        assert "steelyard_settler_posted_total 1.0" in metrics.text
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    await writer.close()


async def test_a_second_settler_waits_until_the_first_is_gone(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    port = free_port()
    admitted = shop.catalogue.admitted()
    data = b"".join(journals.frames(incarnation_id, [admitted, settled(admitted)]))
    with (tmp_path / "settler.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        async with settler(shop, tmp_path, port=port) as second, httpx.AsyncClient() as client:
            health = await _answer(client, port)
            assert (health.status_code, health.json()["waiting_for_other_settler"]) == (503, True)
            journals.dead(tmp_path, incarnation_id, data)
            first.close()
            await until_posted(shop, 0)
            second.send_signal(signal.SIGTERM)
            assert await second.wait() == 0


async def _answer(client: httpx.AsyncClient, port: int) -> httpx.Response:
    """The health of a process that is about to listen."""
    while True:
        try:
            return await client.get(f"http://127.0.0.1:{port}/health")
        except httpx.ConnectError:
            await asyncio.sleep(0.01)
