"""A whole data plane for tests: real PostgreSQL, real journal, simulated engine, the real process object."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import create_async_engine

from app.bootstrap.gateway import GatewayProcess
from app.core import ids
from app.core.ids import TenantId
from app.core.settings import Settings
from billing.journal import frames
from billing.journal.model import Admitted, Progress, Record, Refused, Settled, decode
from billing.ledger import service as ledger
from billing.metering.model import Meter
from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import Options
from tests.database import Database

MODEL = "test-model"
SERVED = "sim-model"
PRICES = {
    Meter.INPUT: 540_000,
    Meter.INPUT_CACHED: 180_000,
    Meter.INPUT_CACHE_WRITE: 540_000,
    Meter.OUTPUT: 2_160_000,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def chat(content: str = "Say hi", **members: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, **members}


@dataclass
class Seeded:
    """What the catalogue holds: one tenant with a key, one published model."""

    secret: str = "sk-sy-" + "t" * 43
    tenant_id: TenantId = field(default_factory=ids.tenant_id)
    project_id: str = field(default_factory=ids.project_id)
    key_id: str = field(default_factory=ids.key_id)
    model_id: str = field(default_factory=ids.model_id)
    deployment_id: str = field(default_factory=ids.deployment_id)
    book_id: str = field(default_factory=ids.price_book_id)
    version_id: str = field(default_factory=ids.price_version_id)


async def seed(database: Database, *, balance: int) -> Seeded:
    """Fill the catalogue, publish prices, open a wallet with `balance` picos."""
    seeded = Seeded()
    connection = await asyncpg.connect(database.owner_url)
    try:
        async with connection.transaction():
            await _insert_catalog(connection, seeded)
    finally:
        await connection.close()
    engine = create_async_engine(database.owner_sqlalchemy_url)
    try:
        async with engine.begin() as session:
            wallet = await ledger.open_wallet(session, tenant_id=seeded.tenant_id, currency="USD")
            if balance:
                await ledger.grant(
                    session,
                    wallet_id=wallet.id,
                    amount=balance,
                    kind="purchased",
                    reason="test",
                    reference="first",
                    created_by="test",
                )
    finally:
        await engine.dispose()
    return seeded


async def _insert_catalog(connection: Any, seeded: Seeded) -> None:
    run = connection.execute
    await run(
        "INSERT INTO price_book (id, name, currency, is_default) VALUES ($1, 'list', 'USD', true)",
        seeded.book_id,
    )
    await run("INSERT INTO tenant (id, name, currency) VALUES ($1, 'Acme', 'USD')", seeded.tenant_id)
    await run(
        "INSERT INTO project (id, tenant_id, name) VALUES ($1, $2, 'p')", seeded.project_id, seeded.tenant_id
    )
    await run(
        "INSERT INTO api_key (id, tenant_id, project_id, name, digest, prefix, last_four)"
        " VALUES ($1, $2, $3, 'k', $4, 'sk-sy-tttt', 'tttt')",
        seeded.key_id,
        seeded.tenant_id,
        seeded.project_id,
        hashlib.sha256(seeded.secret.encode()).digest(),
    )
    await run(
        "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens, status)"
        " VALUES ($1, $2, 4096, 1024, 64, 'published')",
        seeded.model_id,
        MODEL,
    )
    await run("INSERT INTO deployment (id, model_id) VALUES ($1, $2)", seeded.deployment_id, seeded.model_id)
    await run(
        "INSERT INTO price_version (id, price_book_id, status) VALUES ($1, $2, 'draft')",
        seeded.version_id,
        seeded.book_id,
    )
    for meter, price in PRICES.items():
        await run(
            "INSERT INTO price (price_version_id, model_id, meter, micros_per_mtok) VALUES ($1, $2, $3, $4)",
            seeded.version_id,
            seeded.model_id,
            meter.value,
            price,
        )
    await run(
        "UPDATE price_version SET status = 'published', published_at = now(),"
        " effective_from = now() - interval '1 hour' WHERE id = $1",
        seeded.version_id,
    )


async def add_backend(
    database: Database, seeded: Seeded, base_url: str, *, engine: str = "vllm", served: str = SERVED
) -> str:
    """Register a backend; the gateway hears of it by itself."""
    backend_id = ids.backend_id()
    await execute(
        database,
        "INSERT INTO backend (id, deployment_id, base_url, engine, served_model) VALUES ($1, $2, $3, $4, $5)",
        backend_id,
        seeded.deployment_id,
        base_url,
        engine,
        served,
    )
    return backend_id


async def execute(database: Database, statement: str, *arguments: Any) -> None:
    connection = await asyncpg.connect(database.owner_url)
    try:
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


@dataclass
class House:
    """A running gateway with its engine."""

    database: Database
    seeded: Seeded
    process: GatewayProcess
    engine: SimulatedEngine
    client: httpx.AsyncClient
    port: int
    journal_dir: Path

    def metric(self, line: str) -> float:
        """The value of a metric, named as on the page: `name{label="value"}`."""
        page = self.process.metrics.render().decode().splitlines()
        return next(float(row.rpartition(" ")[2]) for row in page if row.rpartition(" ")[0] == line)

    def records(self) -> list[Record]:
        """Everything in the journal."""
        (path,) = self.journal_dir.glob("*.journal")
        return [decode(frame.payload) for frame in frames.unpack(path.read_bytes(), offset=0)[0]]

    def settled(self) -> list[Settled]:
        return [record for record in self.records() if isinstance(record, Settled)]

    def admitted(self) -> list[Admitted]:
        return [record for record in self.records() if isinstance(record, Admitted)]

    def refused(self) -> list[Refused]:
        return [record for record in self.records() if isinstance(record, Refused)]

    def progress(self) -> list[Progress]:
        return [record for record in self.records() if isinstance(record, Progress)]

    def settled_of(self, request_id: str) -> Settled:
        """The one settlement of a request, already on the disk."""
        (settled,) = [record for record in self.settled() if record.request_id == request_id]
        return settled

    def admitted_of(self, request_id: str) -> Admitted:
        (admitted,) = [record for record in self.admitted() if record.request_id == request_id]
        return admitted

    async def until_refused(self, reason: str) -> Refused:
        """Wait for the first refusal with this reason."""
        async with asyncio.timeout(10):
            while not (found := [one for one in self.refused() if one.reason == reason]):
                await asyncio.sleep(0.01)
        return found[0]

    async def until_settled_of(self, request_id: str) -> Settled:
        """Wait for the one settlement of a request."""
        async with asyncio.timeout(10):
            while not any(record.request_id == request_id for record in self.settled()):
                await asyncio.sleep(0.01)
        return self.settled_of(request_id)

    async def until_settled(self, count: int = 1) -> list[Settled]:
        """Wait for so many settlements on the disk."""
        async with asyncio.timeout(10):
            while len(self.settled()) < count:
                await asyncio.sleep(0.01)
        return self.settled()


def settings_for(database: Database, folder: Path, port: int, **changed: Any) -> Settings:
    """Settings of a gateway of a test."""
    values: dict[str, Any] = {
        "database_url": SecretStr(database.app_url),
        "journal_dir": folder,
        "gateway_port": port,
        "metrics_port": 0,
        "probe_interval_s": 0.2,
        "journal_commit_ms": 1,
        **changed,
    }
    return Settings(**values)


@asynccontextmanager
async def open_house(
    database: Database,
    folder: Path,
    *,
    balance: int = 10 * 10**12,
    options: Options | None = None,
    engine_kind: str = "vllm",
    served: str = SERVED,
    tokenizer: str | None = None,
    before: Callable[[Database, Seeded], Awaitable[None]] | None = None,
    **changed: Any,
) -> AsyncIterator[House]:
    """A gateway that serves one model from one simulated engine, until the block ends.

    before: what else is to be in the database when it starts, such as limits.
    """
    engine = SimulatedEngine(options or Options(model=served))
    await engine.start("127.0.0.1", 0)
    seeded = await seed(database, balance=balance)
    await execute(database, "UPDATE model SET tokenizer = $1", tokenizer)
    await add_backend(database, seeded, engine.base_url, engine=engine_kind, served=served)
    if before is not None:
        await before(database, seeded)
    port = free_port()
    process = GatewayProcess(settings_for(database, folder, port, **changed))
    running = asyncio.create_task(process.run())
    serving = asyncio.create_task(process.serving.wait())
    done, _ = await asyncio.wait({running, serving}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    if running in done:
        running.result()
    assert serving in done, "the gateway did not start"
    headers = {"authorization": f"Bearer {seeded.secret}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20)
    try:
        yield House(database, seeded, process, engine, client, port, folder)
    finally:
        await client.aclose()
        process.stop()
        await running
        await engine.stop()
