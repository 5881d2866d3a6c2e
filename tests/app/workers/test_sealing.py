"""Every posted line gets its link once and in order, whoever dies or comes late."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from zoneinfo import ZoneInfo

import asyncpg
import pytest
from prometheus_client import REGISTRY

from app.core.clock import from_ms
from app.insights.events import EventFilter, list_lines
from app.workers.sealing import seal_lines
from billing.chain.check import Check, Scope
from billing.metering.model import Outcome, Usage
from tests.app.control.world import open_world
from tests.app.insights.metered import Traffic, open_traffic, settled
from tests.database import Database

_SEALER = "import sys; from app.workers.sealing import seal_lines; seal_lines(sys.argv[1], most=1)"


@pytest.fixture
async def traffic(database: Database) -> AsyncIterator[Traffic]:
    async with open_world(database) as world:
        yield await open_traffic(world)


async def post(traffic: Traffic, amount: int, *, payer: int = 0, free: bool = False) -> None:
    """Post some requests in one transaction; a free one costs nothing and so takes no lock."""
    at = from_ms(traffic.world.clock.now_ms())
    asked = [traffic.admitted(payer=payer, at=at) for _ in range(amount)]
    outcome = Outcome.ENGINE_FAILED if free else Outcome.COMPLETED
    await traffic.post([(each, settled(each, Usage(10, 5, 0, 7, 3), outcome=outcome)) for each in asked])


async def seal(traffic: Traffic, *, most: int = 5000) -> int:
    url, clock = traffic.world.database.app_url, traffic.world.clock
    return await asyncio.to_thread(seal_lines, url, clock=clock, most=most)


async def read(traffic: Traffic, *, payer: int = 0) -> Check:
    """The check of all that the tenant can read."""
    only = EventFilter(traffic.payers[payer].tenant_id)
    check = Check(Scope(), zone=ZoneInfo("UTC"))
    async with traffic.world.engine.connect() as connection:
        for told in await list_lines(connection, only, after=None, limit=100_000):
            check.take(told.text)
    check.finish()
    return check


async def force(traffic: Traffic, statement: str) -> None:
    """Do what no process does."""
    owner = await asyncpg.connect(traffic.world.database.owner_url)
    try:
        await owner.execute(statement)
    finally:
        await owner.close()


def lag() -> float | None:
    return REGISTRY.get_sample_value("steelyard_chain_lag_seconds")


async def test_every_tenant_has_a_chain_of_its_own_and_a_repeat_adds_nothing(traffic: Traffic) -> None:
    await post(traffic, 3)
    await post(traffic, 2, payer=1)
    await post(traffic, 4)
    assert await seal(traffic) == 9
    assert await seal(traffic) == 0
    first, second = await read(traffic), await read(traffic, payer=1)
    assert (first.kinds["event"], second.kinds["event"]) == (7, 2)
    assert first.findings == second.findings == []
    assert first.start == second.start == "begins with the tenant's first line"
    assert lag() == 0


async def test_two_sealers_at_once_make_one_chain(traffic: Traffic) -> None:
    for _ in range(8):
        await post(traffic, 3)
    made = await asyncio.gather(seal(traffic, most=1), seal(traffic, most=1))
    assert sum(made) + await seal(traffic) == 24
    check = await read(traffic)
    assert (check.findings, check.kinds["event"]) == ([], 24)


async def test_a_killed_sealer_leaves_a_chain_that_the_next_one_goes_on_with(traffic: Traffic) -> None:
    for _ in range(20):
        await post(traffic, 2)
    links = 0
    connection = await asyncpg.connect(traffic.world.database.app_url)
    try:
        while links < 40:
            sealer = subprocess.Popen([sys.executable, "-c", _SEALER, traffic.world.database.app_url])
            before = links
            while links < before + 12 and sealer.poll() is None:
                links = await connection.fetchval("SELECT count(*) FROM usage_link")
            sealer.kill()
            sealer.wait()
            links = await connection.fetchval("SELECT count(*) FROM usage_link")
            assert (await read(traffic)).findings == []
    finally:
        await connection.close()
    assert await seal(traffic) == 0
    check = await read(traffic)
    assert (check.findings, check.kinds["event"]) == ([], 40)


async def test_a_posting_that_commits_late_is_not_missed(traffic: Traffic) -> None:
    await post(traffic, 1, free=True)
    late = await asyncpg.connect(traffic.world.database.owner_url)
    try:
        columns = await late.fetchval(
            "SELECT string_agg(column_name, ', ') FROM information_schema.columns"
            " WHERE table_name = 'usage_event' AND column_name <> 'request_id'"
        )
        transaction = late.transaction()
        await transaction.start()
        await late.execute(
            f"INSERT INTO usage_event (request_id, {columns})"
            f" SELECT 'req_{'e' * 32}', {columns} FROM usage_event"
        )
        traffic.world.clock.advance(5)
        await post(traffic, 2)
        assert await seal(traffic) == 3
        await transaction.commit()
    finally:
        await late.close()
    assert await seal(traffic) == 1
    check = await read(traffic)
    assert (check.findings, check.kinds["event"]) == ([], 4)


async def test_what_comes_after_a_day_has_ended_joins_the_next_and_no_clock_runs_ahead(
    traffic: Traffic,
) -> None:
    day = timedelta(days=1).total_seconds()
    clock = traffic.world.clock
    await post(traffic, 2)
    await seal(traffic)
    clock.advance(day)
    await post(traffic, 1)
    await seal(traffic)
    clock.advance(-day)  # a settler whose clock is behind, or whose transaction took its time
    await post(traffic, 1)
    clock.advance(40 * day)
    await post(traffic, 1)
    clock.advance(-39 * day)  # and one whose clock is ahead of the sealer's
    await seal(traffic)
    check = await read(traffic)
    assert (check.findings, check.kinds["event"]) == ([], 5)
    connection = await asyncpg.connect(traffic.world.database.app_url)
    try:
        rows = await connection.fetch(
            "SELECT day, max(sequence) AS lines FROM usage_link GROUP BY 1 ORDER BY 1"
        )
    finally:
        await connection.close()
    first = from_ms(clock.now_ms()).date() - timedelta(days=1)
    assert [tuple(row) for row in rows] == [(first, 2), (first + timedelta(days=1), 3)]


async def test_the_lag_is_the_age_of_the_oldest_line_without_a_link(traffic: Traffic) -> None:
    await post(traffic, 1)
    traffic.world.clock.advance(7)
    holder = await asyncpg.connect(traffic.world.database.app_url)
    try:
        async with holder.transaction():
            await holder.execute("SELECT pg_advisory_xact_lock(hashtext('steelyard usage chain'))")
            assert await seal(traffic) == 0
            assert lag() == 7
    finally:
        await holder.close()
    assert await seal(traffic) == 1
    assert lag() == 0


async def test_a_line_that_has_its_link_and_stands_in_the_queue_again_stops_nobody(traffic: Traffic) -> None:
    await post(traffic, 2)
    await seal(traffic)
    again = (
        "INSERT INTO usage_unsealed (kind, posted_at, line_ids) SELECT kind, now(), ARRAY[line_id, line_id]"
    )
    await force(traffic, f"{again} FROM usage_link")
    await post(traffic, 1, payer=1)
    assert await seal(traffic) == 1
    first, second = await read(traffic), await read(traffic, payer=1)
    assert (first.findings, first.kinds["event"], second.kinds["event"]) == ([], 2, 1)
    assert lag() == 0


async def test_a_sealer_that_fails_tells_its_lag_all_the_same(traffic: Traffic) -> None:
    await post(traffic, 1)
    await seal(traffic)
    assert lag() == 0
    await post(traffic, 1)
    await force(traffic, "REVOKE INSERT ON usage_link FROM steelyard_app")
    traffic.world.clock.advance(9)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await seal(traffic)
    assert lag() == 9


@pytest.mark.parametrize("statement", ["UPDATE usage_link SET sequence = 9", "DELETE FROM usage_link"])
async def test_a_link_stands(traffic: Traffic, statement: str) -> None:
    await post(traffic, 1)
    await seal(traffic)
    owner = await asyncpg.connect(traffic.world.database.owner_url)
    try:
        with pytest.raises(asyncpg.RestrictViolationError, match="history stands"):
            await owner.execute(statement)
        with pytest.raises(asyncpg.RestrictViolationError, match="history stands"):
            await owner.execute("TRUNCATE usage_link")
    finally:
        await owner.close()
    app = await asyncpg.connect(traffic.world.database.app_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute(statement)
    finally:
        await app.close()
