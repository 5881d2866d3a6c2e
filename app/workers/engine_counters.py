"""Every minute: what each engine says it has counted so far, as a reading.

Addresses come from the catalogue alone. An engine gets a short time, is not followed elsewhere, and its
page is read to a limit, as it comes: unpacking one that is packed, against our asking, could fill the memory
a thousandfold at once. One that does not answer has no reading, which says nothing of its counters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.engines import list_engines
from app.core.clock import Clock, SystemClock, from_ms
from app.core.ids import BackendId
from app.workers.transaction import in_transaction
from billing.reconcile.exposition import ENGINES, read_page
from billing.reconcile.model import Engine, Reading
from billing.reconcile.repository import keep_readings

READ_ENGINES = "steelyard.read_engines"
PAGE_BYTES = 4 << 20
TIMEOUT_S = 5.0
AT_ONCE = 16
_PROCESS_HEADER = "process-start-time-unix"
_PLAIN = {"accept-encoding": "identity"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scraped:
    """One look at all engines: what each said, and which said nothing."""

    readings: dict[BackendId, Reading]
    silent: list[BackendId]


def read_engines(database_url: str, *, clock: Clock | None = None) -> Scraped:
    """Read each engine's counters and keep them. Raises DependencyError if the database can't be reached."""
    clock = clock or SystemClock()

    async def engines(connection: AsyncConnection) -> list[Engine]:
        return await list_engines(connection, removed=False)

    scraped = asyncio.run(scrape(in_transaction(database_url, engines), clock=clock))
    # No transaction stands open while engines are asked.
    in_transaction(database_url, lambda connection: keep_readings(connection, scraped.readings))
    for backend_id in scraped.silent:
        _log.warning("engine_not_read", extra={"backend_id": backend_id})
    return scraped


async def scrape(engines: Sequence[Engine], *, clock: Clock, timeout_s: float = TIMEOUT_S) -> Scraped:
    """The counters of every engine whose software is known to have some. Never raises.

    timeout_s: longest time for one engine.
    """
    asked = [engine for engine in engines if engine.engine in ENGINES]
    turns = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(timeout=timeout_s, follow_redirects=False, trust_env=False) as client:

        async def read(engine: Engine) -> Reading | None:
            try:
                async with turns, asyncio.timeout(timeout_s):
                    return await _read(client, engine, clock=clock)
            except (TimeoutError, httpx.HTTPError, httpx.InvalidURL):
                return None

        answers = await asyncio.gather(*map(read, asked))
    told = dict(zip((engine.backend_id for engine in asked), answers, strict=True))
    return Scraped(
        {backend_id: reading for backend_id, reading in told.items() if reading is not None},
        [backend_id for backend_id, reading in told.items() if reading is None],
    )


async def _read(client: httpx.AsyncClient, engine: Engine, *, clock: Clock) -> Reading | None:
    """An engine's counters as of the moment it was asked, at the earliest; None if it has no page for us."""
    asked_at = from_ms(clock.now_ms())
    async with client.stream("GET", f"{engine.base_url}/metrics", headers=_PLAIN) as answer:
        page = await _page(answer) if answer.status_code == 200 else None
        process = answer.headers.get(_PROCESS_HEADER)
    if page is None:
        return None
    names = ENGINES[engine.engine]
    return Reading(asked_at, read_page(page, names, served_model=engine.served_model, process=process))


async def _page(answer: httpx.Response) -> str | None:
    """The text of a page; None if it is packed or has no end within the limit."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > PAGE_BYTES:
            return None
    return body.decode("utf-8", errors="replace")
