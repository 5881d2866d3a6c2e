"""The periods of calendar limits: in the tenant's zone, half-open, without gaps, open a day ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.quota.terms import CALENDAR
from tests.billing.quota.tenancy import Tenancy, each, open_tenancy
from tests.database import Database

# Clocks that skip midnight (Cairo, Beirut, São Paulo, Santiago, Asunción, Amman), show it twice (Havana),
# jump by half an hour (Lord Howe) or over a whole day (Apia), go back over midnight (St John's); common ones.
ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut"),
    *("America/Santiago", "America/Asuncion", "Asia/Amman", "America/Havana", "Australia/Lord_Howe"),
    *("Pacific/Apia", "America/St_Johns", "Asia/Kolkata", "Asia/Shanghai", "Africa/Casablanca"),
)
TURNS = tuple(
    (zone, datetime(*day, tzinfo=ZoneInfo(zone)).astimezone(UTC))
    for zone, day in (
        ("America/Sao_Paulo", (2018, 11, 4)),
        ("America/Sao_Paulo", (2018, 2, 18)),
        ("Africa/Cairo", (2023, 4, 28)),
        ("Asia/Beirut", (2022, 3, 27)),
        ("America/Havana", (2022, 11, 6)),
        ("America/Havana", (2022, 3, 13)),
        ("America/Santiago", (2022, 9, 11)),
        ("Pacific/Apia", (2011, 12, 31)),
        ("America/St_Johns", (2010, 11, 7)),
        ("Europe/Berlin", (2023, 10, 29)),
        ("Australia/Lord_Howe", (2023, 4, 2)),
    )
)


def first_moment(day: date, zone: ZoneInfo) -> datetime:
    """When a day begins: of two midnights the first (fold 0), of none the moment at which it is skipped."""
    return datetime.combine(day, time(), tzinfo=zone).astimezone(UTC)


def step(day: date, window: str, by: int) -> date:
    if window == "month":
        months = day.year * 12 + day.month - 1 + by
        return date(months // 12, months % 12 + 1, 1)
    return day + timedelta(days=by * (7 if window == "week" else 1))


def period_of(at: datetime, window: str, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The same in Python, with its own zones."""
    day = at.astimezone(zone).date()
    if window == "month":
        day = day.replace(day=1)
    elif window == "week":
        day -= timedelta(days=day.weekday())
    if at >= first_moment(step(day, window, 1), zone):
        day = step(day, window, 1)
    elif at < first_moment(day, zone):
        day = step(day, window, -1)
    return first_moment(day, zone), first_moment(step(day, window, 1), zone)


START = datetime(2008, 1, 1, tzinfo=UTC)
MOMENTS = st.one_of(
    st.tuples(
        st.sampled_from(ZONES),
        st.timedeltas(timedelta(0), timedelta(days=16 * 365)).map(lambda since: START + since),
    ),
    st.tuples(st.sampled_from(TURNS), st.timedeltas(timedelta(hours=-30), timedelta(hours=30))).map(
        lambda drawn: (drawn[0][0], drawn[0][1] + drawn[1])
    ),
)


@pytest_asyncio.fixture
async def tenancy(database: Database) -> AsyncIterator[Tenancy]:
    async with open_tenancy(database) as opened:
        yield opened


def test_periods_are_those_that_the_zones_clock_shows(database: Database) -> None:
    loop = asyncio.new_event_loop()
    connection: Any = loop.run_until_complete(asyncpg.connect(database.app_url))

    @settings(max_examples=400, deadline=None)
    @given(MOMENTS, st.sampled_from(CALENDAR))
    def holds(moment: tuple[str, datetime], window: str) -> None:
        zone, at = moment
        row = loop.run_until_complete(
            connection.fetchrow("SELECT * FROM quota_period($1, $2, $3)", window, zone, at)
        )
        assert (row["starts"], row["ends"]) == period_of(at, window, ZoneInfo(zone))
        assert row["starts"] <= at < row["ends"]

    try:
        holds()
        for zone, at in TURNS:
            row = loop.run_until_complete(
                connection.fetchrow("SELECT * FROM quota_period('day', $1, $2)", zone, at)
            )
            assert (row["starts"], row["ends"]) == period_of(at, "day", ZoneInfo(zone))
            assert row["starts"] == at
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


async def test_the_next_period_is_open_a_day_before_it_begins(tenancy: Tenancy) -> None:
    await tenancy.override(tenancy.tenant_id, each("tenant", "requests", "day", 5))
    rows = await tenancy.rows()
    now, due = await tenancy.now(), await tenancy.due()
    assert rows[0]["period_start"] <= now < rows[0]["period_end"]
    assert all(a["period_end"] == b["period_start"] for a, b in pairwise(rows))
    assert rows[-1]["period_end"] > now + timedelta(days=1)
    assert due is not None
    assert now < due < rows[-1]["period_end"] - timedelta(days=1)


async def test_a_period_that_is_due_is_opened_by_whoever_looks_and_by_one_alone(tenancy: Tenancy) -> None:
    await tenancy.override(tenancy.tenant_id, each("tenant", "requests", "day", 5))
    before = await tenancy.rows()
    owner = await asyncpg.connect(tenancy.owner_url)
    try:  # as if it were some days ago that these were opened
        await owner.execute(
            "UPDATE allowance SET period_start = period_start - interval '3 days',"
            " period_end = period_end - interval '3 days'"
        )
    finally:
        await owner.close()
    await tenancy.pool.execute("UPDATE tenant_limits SET next_change_at = now() - interval '1 second'")
    done = await asyncio.gather(*(tenancy.pool.fetchval("SELECT quota_resolve_due(10)") for _ in range(5)))
    assert sum(done) >= 1
    rows = [row for row in await tenancy.rows() if row["period_end"] > await tenancy.now()]
    assert [(row["period_start"], row["period_end"]) for row in rows] == [
        (row["period_start"], row["period_end"]) for row in before
    ]
    assert await tenancy.pool.fetchval("SELECT quota_resolve_due(10)") == 0


async def test_a_period_that_begins_under_another_plan_is_opened_with_that_plans_limit(
    tenancy: Tenancy,
) -> None:
    await tenancy.assign(await tenancy.plan(each("tenant", "tokens", "day", 100), name="Small"))
    tomorrow = (await tenancy.rows())[0]["period_end"]
    large = await tenancy.plan(each("tenant", "tokens", "day", 900), name="Large")
    await tenancy.assign(large, start=tomorrow)
    rows = await tenancy.rows()
    assert [int(row["limit_amount"]) for row in rows[:2]] == [100, 900]


async def test_another_zone_rules_from_the_first_period_that_is_not_open_yet(tenancy: Tenancy) -> None:
    await tenancy.override(tenancy.tenant_id, each("tenant", "requests", "day", 5))
    before = await tenancy.rows()
    await tenancy.pool.execute("UPDATE tenant SET timezone = 'Asia/Kolkata'")
    await tenancy.resolve()
    assert await tenancy.rows() == before
    following = await tenancy.pool.fetch(
        "SELECT * FROM quota_periods($1, 'day', now(), $2)", tenancy.tenant_id, before[-1]["period_end"]
    )
    assert following[-1]["starts"] == before[-1]["period_end"]
    assert following[-1]["ends"].astimezone(ZoneInfo("Asia/Kolkata")).time() == time()


async def test_a_zone_that_is_unknown_stops_one_tenant_alone(tenancy: Tenancy) -> None:
    await tenancy.override(tenancy.tenant_id, each("tenant", "requests", "month", 5))
    other = await tenancy.tenant()
    await tenancy.pool.execute("UPDATE tenant SET timezone = 'Mars/Olympus' WHERE id = $1", tenancy.tenant_id)
    await tenancy.pool.execute("UPDATE tenant_limits SET next_change_at = now() - interval '1 second'")
    await tenancy.pool.execute(
        "INSERT INTO limit_override (id, tenant_id, scope_kind, scope_id, what, window_kind, amount,"
        " effective_from, reason, created_by)"
        " VALUES ('ovr_1', $1, 'tenant', $1, 'concurrent', 'running', 3, now(), 'r', 't')",
        other,
    )
    owner = await asyncpg.connect(tenancy.owner_url)
    try:  # so that its next period has to be computed
        await owner.execute("UPDATE allowance SET period_end = period_start + interval '1 second'")
    finally:
        await owner.close()
    assert await tenancy.pool.fetchval("SELECT quota_resolve_due(10)") == 2
    assert await tenancy.pool.fetchval("SELECT limit_amount FROM allowance WHERE scope_id = $1", other) == 3
    due = await tenancy.due()
    assert due is not None
    assert due > await tenancy.now()


@pytest.mark.parametrize("window", CALENDAR)
async def test_each_window_has_its_own_chain_of_periods(tenancy: Tenancy, window: Any) -> None:
    await tenancy.override(tenancy.tenant_id, each("tenant", "requests", window, 5))
    (first, *_) = await tenancy.rows()
    assert (first["period_start"], first["period_end"]) == period_of(
        await tenancy.now(), window, ZoneInfo("UTC")
    )
