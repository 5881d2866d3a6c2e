"""The worker's hour: today, yesterday and one day of the past are reconciled, and the metrics say so."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from prometheus_client import REGISTRY

from app.core.clock import ManualClock
from app.core.settings import Settings
from app.workers.reconcile import reconcile_days
from tests.database import Database

NOON = datetime(2026, 12, 2, 12, tzinfo=UTC)


def clock() -> ManualClock:
    return ManualClock(round(NOON.timestamp() * 1000))


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"steelyard_reconcile_{name}", labels)


def execute(database: Database, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(database.owner_url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


ROLLUP = """
INSERT INTO usage_rollup (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency,
  usage_source, requests, input, input_cached, input_cache_write, output, reasoning, billed_input,
  billed_input_cached, billed_input_cache_write, billed_output, cost)
VALUES ('{at}', 'ten_1', 'prj_1', 'key_1', 'mdl_1', 'pbv_1', 'USD', 'engine', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9)
"""


def test_an_empty_house_is_well_today_and_yesterday(database: Database) -> None:
    found = reconcile_days(database.app_url, settings=Settings(), clock=clock())
    assert [each.day.isoformat() for each in found] == ["2026-12-01", "2026-12-02"]
    assert metric("gaps", pair="events_rollups") == 0
    assert metric("unexplained_tokens") == metric("lost_requests") == 0
    assert metric("timestamp_seconds") == NOON.timestamp()


def test_the_past_is_looked_at_a_day_an_hour_and_its_gaps_are_shown(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    execute(database, ROLLUP.format(at=NOON - timedelta(days=5)))
    time, days = clock(), []
    for _ in range(5):
        found = reconcile_days(database.app_url, settings=Settings(), clock=time)
        days.append(found[0].day.isoformat())
        time.advance(3600)
    assert days == [f"2026-11-{day}" for day in ("27", "28", "29", "30", "27")]
    assert metric("gaps", pair="events_rollups") == 2
    told = [record for record in caplog.records if record.getMessage() == "books_differ"]
    assert {(record.__dict__["kind"], record.__dict__["day"]) for record in told} == {
        ("rollup_without_events", "2026-11-27")
    }


def test_a_gap_that_is_mended_leaves_the_metric(database: Database) -> None:
    execute(database, ROLLUP.format(at=NOON))
    reconcile_days(database.app_url, settings=Settings(), clock=clock())
    assert metric("gaps", pair="events_rollups") == 2
    execute(database, "DELETE FROM usage_rollup")
    later = clock()
    later.advance(60)
    reconcile_days(database.app_url, settings=Settings(), clock=later)
    assert metric("gaps", pair="events_rollups") == 0
