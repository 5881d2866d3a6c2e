"""Gateways as processes that note their admissions, with PostgreSQL, a settler and the engine stand-in.

Each gateway has a port of its own, so that a client can choose; a killed one is started again on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.stack.postgres import APP, DATABASE, OWNER, SUPERUSER, Postgres
from bench import machine
from bench.quota_buyers import open_shop
from migrations import runner
from tests.app.gateway.house import SERVED, Seeded, add_backend, free_port
from tests.app.gateway.process import Child, gateway_process, settler_process, simulator_process
from tests.database import Database

_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_PATIENCE_S = 60.0
_POLL_S = 0.03


@dataclass
class Life:
    """One process of a gateway, from start to end.   notes: what it notes of its admissions."""

    incarnation_id: str
    notes: Path
    child: Child
    killed_ns: int | None = None


@dataclass
class Gateway:
    """One place where a gateway runs, and the lives that it has had there."""

    port: int
    metrics_port: int
    lives: list[Life] = field(default_factory=list)

    @property
    def life(self) -> Life:
        """The one that it has now."""
        return self.lives[-1]


@dataclass
class Stack:
    """What runs.   books: the database as the owner of its tables.   engine: as services use it."""

    folder: Path
    database: Database
    seeded: Seeded
    books: asyncpg.Pool
    engine: AsyncEngine
    http: httpx.AsyncClient
    postgres_pid: int
    gateways: list[Gateway]
    _lives: AsyncExitStack

    async def start(self, gateway: Gateway) -> None:
        """Begin a life of a gateway; it serves when this returns."""
        notes = self.folder / f"notes-{gateway.port}-{len(gateway.lives)}"
        child = await self._lives.enter_async_context(
            gateway_process(
                self.database,
                self.folder,
                gateway.port,
                metrics_port=gateway.metrics_port,
                program="bench.quota_gateway",
                BENCH_NOTES=str(notes),
                STEELYARD_PROBE_INTERVAL_S="2",
            )
        )
        health = (await self.http.get(f"http://127.0.0.1:{gateway.metrics_port}/health")).json()
        gateway.lives.append(Life(health["incarnation_id"], notes, child))

    async def kill(self, gateway: Gateway) -> Life:
        """`kill -9`; returns the life that ended."""
        life = gateway.life
        life.killed_ns = time.time_ns()
        life.child.signal(signal.SIGKILL)
        await life.child.process.wait()
        return life

    async def counters(self) -> dict[str, float]:
        """The sums of all gateways' counters, labels summed up."""
        sums: dict[str, float] = {}
        for gateway in self.gateways:
            page = (await self.http.get(f"http://127.0.0.1:{gateway.metrics_port}/metrics")).text
            for name, value in _SAMPLE.findall(page):
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def statements(self) -> dict[str, int]:
        """Statements that clients of PostgreSQL sent so far: messages of gateways' quotas, and all."""
        row = await self.books.fetchrow(
            "SELECT coalesce(sum(calls), 0)::bigint AS all,"
            " coalesce(sum(calls) FILTER (WHERE query LIKE 'SELECT quota_sync(%'), 0)::bigint AS syncs"
            " FROM pg_stat_statements"
        )
        assert row is not None
        return {"all": row["all"], "syncs": row["syncs"]}

    async def authority_cpu(self) -> dict[int, float]:
        """CPU seconds so far of each PostgreSQL backend that answers gateways' quota messages, by its pid."""
        rows = await self.books.fetch(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT quota_sync(%'"
        )
        found = {}
        for row in rows:
            with contextlib.suppress(FileNotFoundError):  # its client went away just now
                found[row["pid"]] = machine.cpu_seconds([row["pid"]])
        return found

    def all_lives(self) -> list[Life]:
        return [life for gateway in self.gateways for life in gateway.lives]


@asynccontextmanager
async def open_stack(*, gateways: int, ttft_ms: int) -> AsyncIterator[Stack]:
    """A stack on a throw-away folder, its gateways serving a model but no buyer yet."""
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="steelyard-quota-"))
        folder.chmod(0o711)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = Postgres(folder / "postgres")
        stack.callback(postgres.stop)
        database = _database(postgres)
        await asyncio.to_thread(runner.upgrade, database.owner_url)
        await _count_statements(postgres)
        books = await stack.enter_async_context(
            asyncpg.create_pool(database.owner_url, min_size=1, max_size=4)
        )
        engine = create_async_engine(database.app_sqlalchemy_url)
        stack.push_async_callback(engine.dispose)
        simulated = simulator_process(folder, "--ttft-ms", str(ttft_ms), model=SERVED)
        engine_url = await stack.enter_async_context(simulated)
        seeded = await open_shop(database)
        await add_backend(database, seeded, engine_url)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        lives = await stack.enter_async_context(AsyncExitStack())
        places = [Gateway(free_port(), free_port()) for _ in range(gateways)]
        pid = int((postgres.home.data / "postmaster.pid").read_text().split()[0])
        made = Stack(folder, database, seeded, books, engine, http, pid, places, lives)
        await stack.enter_async_context(settler_process(database, folder))
        await asyncio.gather(*map(made.start, places))
        yield made


async def until(look: Callable[[], Any], *, within_s: float = _PATIENCE_S) -> Any:
    """What `look` finds, asked again until it finds something. Raises TimeoutError if it never does."""
    async with asyncio.timeout(within_s):
        while not (found := await look()):
            await asyncio.sleep(_POLL_S)
    return found


def _database(postgres: Postgres) -> Database:
    """A started PostgreSQL that counts statements."""
    postgres.prepare()
    with (postgres.home.data / "postgresql.conf").open("a") as conf:
        conf.write("shared_preload_libraries = 'pg_stat_statements'\npg_stat_statements.track = 'top'\n")
    postgres.start()
    return Database(DATABASE, postgres.url(role=OWNER), postgres.url(role=APP))


async def _count_statements(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.url(role=SUPERUSER))
    try:
        await connection.execute("CREATE EXTENSION pg_stat_statements")
        await connection.execute(f"GRANT pg_read_all_stats TO {OWNER}")
    finally:
        await connection.close()
