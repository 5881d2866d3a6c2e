"""Gateways, settlers and engines as the processes that they are in production."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.app.gateway.house import free_port
from tests.database import Database


@dataclass
class Child:
    """A child process and what it wrote to standard error."""

    process: asyncio.subprocess.Process
    log: Path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(15):
            return await self.process.wait()


@asynccontextmanager
async def child(folder: Path, *arguments: str, **environment: str) -> AsyncIterator[Child]:
    """`python -m` these arguments, killed at the end if it still runs."""
    log = folder / f"{arguments[0]}-{free_port()}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            env={**os.environ, "PYTHONWARNINGS": "error", **environment},
            stdout=out,
            stderr=out,
        )
    try:
        yield Child(process, log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


@asynccontextmanager
async def gateway_process(
    database: Database,
    folder: Path,
    port: int,
    *,
    metrics_port: int | None = None,
    program: str = "app.bootstrap.gateway",
    **more: str,
) -> AsyncIterator[Child]:
    """A gateway on this port, ready to serve.   program: another one that runs it."""
    metrics_port = metrics_port or free_port()
    environment = {
        "STEELYARD_DATABASE_URL": database.app_url,
        "STEELYARD_JOURNAL_DIR": str(folder / "journal"),
        "STEELYARD_GATEWAY_PORT": str(port),
        "STEELYARD_METRICS_PORT": str(metrics_port),
        "STEELYARD_PROBE_INTERVAL_S": "0.2",
        **more,
    }
    async with child(folder, program, **environment) as started:
        await until_ready(metrics_port, started)
        yield started


@asynccontextmanager
async def settler_process(database: Database, folder: Path) -> AsyncIterator[Child]:
    metrics_port = free_port()
    environment = {
        "STEELYARD_DATABASE_URL": database.app_url,
        "STEELYARD_JOURNAL_DIR": str(folder / "journal"),
        "STEELYARD_METRICS_PORT": str(metrics_port),
    }
    async with child(folder, "app.bootstrap.settler", **environment) as started:
        await until_ready(metrics_port, started)
        yield started


@asynccontextmanager
async def simulator_process(folder: Path, *options: str, model: str) -> AsyncIterator[str]:
    """The base URL of a simulated engine in a process of its own."""
    port = free_port()
    async with child(
        folder, "scheduler.simulator", "--port", str(port), "--model", model, *options
    ) as started:
        await until_ready(port, started)
        yield f"http://127.0.0.1:{port}"


async def until_ready(port: int, started: Child) -> None:
    """Wait for 200 from `/health`; fails with the process' log if it ends before."""
    async with asyncio.timeout(30), httpx.AsyncClient() as client:
        while not await _is_ready(client, port):
            assert started.process.returncode is None, started.log.read_text()
            await asyncio.sleep(0.05)


async def _is_ready(client: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200
    except httpx.TransportError:
        return False
