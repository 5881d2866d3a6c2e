"""The control process as a deployment starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.database import Database

_PASSWORD = "a long enough password"
_READY_TRIES = 300


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _admin(database: Database, email: str, password: str = _PASSWORD) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "app.bootstrap.admin", "--email", email),
        env=os.environ | {"STEELYARD_DATABASE_URL": database.app_url, "STEELYARD_ADMIN_PASSWORD": password},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output


@asynccontextmanager
async def _control(
    database_url: str, port: int, *, metrics_port: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "app.bootstrap.control"),
        env=os.environ
        | {
            "STEELYARD_DATABASE_URL": database_url,
            "STEELYARD_CONTROL_PORT": str(port),
            "STEELYARD_METRICS_PORT": str(metrics_port),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _await_status(client: httpx.AsyncClient, url: str, status: int) -> httpx.Response:
    for _ in range(_READY_TRIES):
        try:
            answer = await client.get(url)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code == status:
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError(f"{url} never answered {status}")


async def test_the_process_serves_api_console_and_probes_and_stops_cleanly(database: Database) -> None:
    status, output = await _admin(database, "admin@example.com")
    token = json.loads(output)["token"]
    assert (status, token[:4]) == (0, "sya_")
    port, metrics_port = _free_port(), _free_port()
    async with _control(database.app_url, port, metrics_port=metrics_port) as process:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            await _await_status(client, f"http://127.0.0.1:{metrics_port}/health", 200)
            me = await client.get("/api/v1/me", headers={"authorization": f"Bearer {token}"})
            assert me.json()["name"] == "admin@example.com"
            assert me.headers["x-content-type-options"] == "nosniff"
            assert me.headers["cache-control"] == "no-store"
            assert (await client.get("/")).headers["location"] == "/console/"
            assert (await client.get("/console/login")).status_code == 200
            assert (await client.get("/health")).status_code == 200
            metrics = (await client.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
            counted = 'steelyard_control_requests_total{method="GET",route="/api/v1/me",status="200"} 1.0'
            assert counted in metrics
        process.send_signal(signal.SIGTERM)
        _, lines = await process.communicate()
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in lines.splitlines()]
    assert events[0] == "control_started"
    assert events[-1] == "control_stopped"
    assert token.encode() not in lines


async def test_without_a_database_the_process_runs_and_says_so(database: Database) -> None:
    nowhere = database.app_url.replace(database.name, "no_such_database")
    port, metrics_port = _free_port(), _free_port()
    async with _control(nowhere, port, metrics_port=metrics_port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            await _await_status(client, f"http://127.0.0.1:{metrics_port}/health", 503)
            headers = {"authorization": "Bearer sya_whatever"}
            answer = await client.get("/api/v1/me", headers=headers)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "dependency_unavailable"
            assert (await client.get("/health")).status_code == 503


async def test_the_first_operator_is_made_once_and_given_a_fresh_token_each_time(database: Database) -> None:
    first = await _admin(database, "Admin@Example.com")
    second = await _admin(database, "admin@example.com")
    assert first[0] == second[0] == 0
    assert json.loads(first[1])["token"] != json.loads(second[1])["token"]


async def test_a_short_password_is_refused(database: Database) -> None:
    status, output = await _admin(database, "admin@example.com", password="short")
    assert (status, output) == (1, b"")
