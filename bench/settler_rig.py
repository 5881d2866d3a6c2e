"""What the settler is measured on: a durable PostgreSQL, a market of buyers, the settler, and writers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import text

from app.core import ids
from app.core.database import connect_engine
from app.stack.postgres import APP, DATABASE, OWNER, SUPERUSER, Postgres
from bench import machine
from bench.market import Market, Size, lend, open_market
from migrations import runner

_PATIENCE_S = 900.0
_PROBE_PORT = 20_990


@dataclass
class Rig:
    """PostgreSQL, the settler, and the writers of the moment."""

    folder: Path
    postgres: Postgres
    market: Market
    settler: subprocess.Popen[bytes] | None = None
    written: dict[str, int] = field(default_factory=lambda: {"settled": 0, "cost": 0, "refused": 0})

    @property
    def journals(self) -> Path:
        return self.folder / "journals"

    def url(self, role: str) -> str:
        return self.postgres.url(DATABASE, role=role)

    def start_settler(self) -> None:
        environment = os.environ | {
            "STEELYARD_DATABASE_URL": self.url(APP),
            "STEELYARD_JOURNAL_DIR": str(self.journals),
            "STEELYARD_METRICS_PORT": str(_PROBE_PORT),
        }
        command = [sys.executable, "-m", "app.bootstrap.settler"]
        with (self.folder / "settler.log").open("ab") as log:
            self.settler = subprocess.Popen(command, env=environment, stderr=log)

    def stop_settler(self) -> None:
        if self.settler is not None:
            self.settler.terminate()
            self.settler.wait(timeout=60)
            self.settler = None

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of the settler and of PostgreSQL (ended backends included)."""
        process = self.postgres._process
        server = 0.0 if process is None else tree_cpu(process.pid)
        return {
            "settler": tree_cpu(self.settler.pid) if self.settler else 0.0,
            "postgres": server,
        }

    def write(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
        """Start writers on new incarnations; returns once they write."""
        market = self.folder / "market.json"
        self.market.save(market)
        journals = str(self.journals if folder is None else folder)
        command = [sys.executable, "-m", "bench.journals", journals, str(market), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def finish(self, writers: subprocess.Popen[str]) -> None:
        """Wait for writers that end, and add up what they tell."""
        told, _ = writers.communicate(timeout=_PATIENCE_S)
        for name, number in json.loads(told).items():
            self.written[name] += number


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process, its ended children, and its living ones."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    living = 0.0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            living += machine.cpu_seconds([int(child)])
    return machine.cpu_seconds([pid]) + ended + living


def lag_ms() -> int | None:
    """The settler's lag as it tells it, None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{_PROBE_PORT}/health", timeout=5) as answer:
            return int(json.load(answer)["lag_ms"])
    except urllib.error.HTTPError as error:
        return int(json.load(error)["lag_ms"])
    except OSError:
        return None


def is_ready() -> bool:
    """Whether the settler works with all its hands."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{_PROBE_PORT}/health", timeout=5):
            return True
    except OSError:
        return False


async def one(rig: Rig, query: str) -> Any:
    """The first row of a query, by a fresh connection."""
    engine = connect_engine(rig.url(SUPERUSER), pool_size=1, statement_timeout_s=300)
    try:
        async with engine.connect() as connection:
            return (await connection.execute(text(query))).first()
    finally:
        await engine.dispose()


async def count(rig: Rig) -> int:
    """Events posted so far, by the roll-ups: counting them one by one would slow down what is measured."""
    row = await one(rig, "SELECT coalesce(sum(requests), 0) FROM usage_rollup")
    return int(row[0])


async def renew(rig: Rig) -> None:
    """New incarnations for the next writers."""
    fresh = tuple(ids.incarnation_id() for _ in rig.market.incarnations)
    owner = connect_engine(rig.url(OWNER), pool_size=1)
    try:
        await lend(owner, fresh, allowances=sorted({buyer.allowance_id for buyer in rig.market.buyers}))
    finally:
        await owner.dispose()
    rig.market = msgspec.structs.replace(rig.market, incarnations=fresh)


async def statements(rig: Rig) -> int:
    row = await one(
        rig,
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid "
        f"WHERE r.rolname = '{APP}'",
    )
    return int(row[0])


async def settle_all(rig: Rig, *, expected: int) -> None:
    while await count(rig) < expected:
        await asyncio.sleep(0.2)


async def prepare(folder: Path) -> Rig:
    """A durable PostgreSQL with the newest schema and a market in it."""
    postgres = Postgres(folder / "postgres")
    await asyncio.to_thread(postgres.start)
    rig = Rig(folder, postgres, Market((), (), ids.price_version_id(), ()))
    rig.journals.mkdir(mode=0o750)
    await asyncio.to_thread(runner.upgrade, rig.url(OWNER))
    superuser = connect_engine(rig.url(SUPERUSER), pool_size=1)
    async with superuser.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        await raw.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")  # type: ignore[union-attr]
    await superuser.dispose()
    await asyncio.to_thread(postgres.stop)
    await asyncio.to_thread(postgres.start)
    superuser = connect_engine(rig.url(SUPERUSER), pool_size=1)
    async with superuser.begin() as connection:
        await connection.execute(text("CREATE EXTENSION pg_stat_statements"))
    await superuser.dispose()
    app, owner = connect_engine(rig.url(APP)), connect_engine(rig.url(OWNER))
    try:
        rig.market = await open_market(app, owner, size=Size())
    finally:
        await app.dispose()
        await owner.dispose()
    return rig
