"""Engines are asked where the catalogue says and nowhere else; who does not answer has no reading."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from app.core.clock import ManualClock, from_ms
from app.core.ids import BackendId, DeploymentId, ModelId
from app.workers.engine_counters import read_engines, scrape
from billing.reconcile.model import Counters, Engine
from tests.app.workers.metrics_pages import serve_pages
from tests.database import Database


def engine(name: str, base_url: str, *, software: str = "vllm", served: str = "m") -> Engine:
    return Engine(
        BackendId(name), DeploymentId("dep_1"), ModelId("mdl_1"), "m", software, base_url, served, False
    )


async def test_a_page_is_read_as_of_the_moment_it_was_asked_for() -> None:
    clock = ManualClock()
    async with serve_pages() as url:
        scraped = await scrape([engine("bck_1", f"{url}/well")], clock=clock)
    reading = scraped.readings[BackendId("bck_1")]
    assert (reading.at, scraped.silent) == (from_ms(clock.now_ms()), [])
    assert reading.counters == Counters("42", prompt=7, generated=3)


@pytest.mark.parametrize("path", ["moved", "endless", "missing", "packed"])
async def test_no_redirect_is_followed_and_no_page_that_is_packed_or_without_end_is_read(path: str) -> None:
    async with serve_pages() as url:
        scraped = await scrape(
            [engine("bck_1", f"{url}/{path}"), engine("bck_2", f"{url}/well")], clock=ManualClock()
        )
    assert scraped.silent == ["bck_1"]
    assert list(scraped.readings) == ["bck_2"]


async def test_an_engine_that_is_away_or_silent_keeps_nobody_waiting() -> None:
    async with serve_pages() as url:
        asked = [
            engine("bck_1", "http://127.0.0.1:1"),
            engine("bck_2", f"{url}/silent"),
            engine("bck_3", f"{url}/well"),
        ]
        scraped = await scrape(asked, clock=ManualClock(), timeout_s=0.3)
    assert scraped.silent == ["bck_1", "bck_2"]
    assert list(scraped.readings) == ["bck_3"]


async def test_software_without_counters_is_not_asked() -> None:
    scraped = await scrape([engine("bck_1", "http://127.0.0.1:1", software="openai")], clock=ManualClock())
    assert (scraped.readings, scraped.silent) == ({}, [])


async def test_a_page_that_does_not_say_is_a_reading_of_unknowns() -> None:
    async with serve_pages() as url:
        scraped = await scrape([engine("bck_1", f"{url}/well", software="llama-server")], clock=ManualClock())
    assert scraped.readings[BackendId("bck_1")].counters == Counters("42")


async def test_engines_of_the_catalogue_are_read_and_kept_and_removed_ones_left_alone(
    database: Database,
) -> None:
    async with serve_pages() as url:
        addresses = {
            "bck_active": f"{url}/well",
            "bck_drained": f"{url}/missing",
            "bck_removed": f"{url}/well",
        }
        await _catalogue(database, addresses)
        scraped = await asyncio.to_thread(read_engines, database.app_url)
    assert (list(scraped.readings), scraped.silent) == (["bck_active"], ["bck_drained"])
    kept = await _fetch(database, "SELECT backend_id, process, prompt, cached, generated FROM engine_reading")
    assert [tuple(row) for row in kept] == [("bck_active", "42", 7, None, 3)]


async def test_a_page_of_monstrous_values_takes_no_other_engine_its_reading(database: Database) -> None:
    async with serve_pages() as url:
        await _catalogue(database, {"bck_1": f"{url}/monstrous", "bck_2": f"{url}/well"})
        await asyncio.to_thread(read_engines, database.app_url)
    kept = await _fetch(database, "SELECT backend_id, process, prompt FROM engine_reading ORDER BY 1")
    assert [tuple(row) for row in kept] == [("bck_1", None, None), ("bck_2", "42", 7)]


async def _catalogue(database: Database, addresses: dict[str, str]) -> None:
    """One deployment with these backends, each in the state that its name tells."""
    await _fetch(
        database,
        "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens) "
        "VALUES ('mdl_1', 'm', 100, 10, 10)",
    )
    await _fetch(database, "INSERT INTO deployment (id, model_id) VALUES ('dep_1', 'mdl_1')")
    for name, url in addresses.items():
        status = {"bck_drained": "draining", "bck_removed": "removed"}.get(name, "active")
        await _fetch(
            database,
            "INSERT INTO backend (id, deployment_id, base_url, engine, served_model, status) "
            f"VALUES ('{name}', 'dep_1', '{url}', 'vllm', 'm', '{status}')",
        )


async def _fetch(database: Database, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(database.owner_url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
