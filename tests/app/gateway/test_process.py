"""The gateway as a process: what it imports, how it stops, what is left when it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.app.gateway.house import SERVED, Seeded, add_backend, chat, free_port, seed
from tests.app.gateway.process import child, gateway_process, settler_process, simulator_process
from tests.database import Database

_CHAT = "/v1/chat/completions"
_FORBIDDEN = ("sqlalchemy", "celery", "stripe", "jinja2", "fastapi", "starlette", "httpx", "xllamacpp")


@asynccontextmanager
async def _engine(database: Database, folder: Path, *options: str) -> AsyncIterator[tuple[Seeded, str]]:
    async with simulator_process(folder, *options, model=SERVED) as base_url:
        seeded = await seed(database, balance=10 * 10**12)
        await add_backend(database, seeded, base_url)
        yield seeded, base_url


def _client(seeded: Seeded, port: int) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {seeded.secret}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20)


async def _rows(database: Database, query: str) -> list[Any]:
    connection = await asyncpg.connect(database.owner_url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def _until_posted(database: Database, count: int) -> list[Any]:
    async with asyncio.timeout(20):
        while len(rows := await _rows(database, "SELECT * FROM usage_event ORDER BY request_id")) < count:
            await asyncio.sleep(0.05)
    return rows


async def _until_closed(database: Database) -> None:
    """Wait until the settler has proven every incarnation dead."""
    async with asyncio.timeout(10):
        while await _rows(database, "SELECT FROM incarnation WHERE status = 'open'"):
            await asyncio.sleep(0.05)


async def _drained(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


def test_the_data_plane_imports_nothing_of_the_control_plane() -> None:
    code = "import sys, app.bootstrap.gateway; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    tops = {name.partition(".")[0] for name in loaded.split()}
    assert tops.isdisjoint(_FORBIDDEN)


async def test_a_taken_port_is_a_clear_error(database: Database, tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(AssertionError, match="Another program listens there"):
            async with gateway_process(database, tmp_path, stranger.getsockname()[1]):
                pass


async def test_processes_share_a_port_and_all_their_requests_are_posted(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        _engine(database, tmp_path) as (seeded, engine_url),
        gateway_process(database, tmp_path, port),
        gateway_process(database, tmp_path, port),
        settler_process(database, tmp_path),
    ):
        answers = []
        for _ in range(20):
            async with _client(seeded, port) as client:  # a connection each, spread by the kernel
                answers.append(await client.post(_CHAT, json=chat()))
        assert {answer.status_code for answer in answers} == {200}
        events = await _until_posted(database, 20)
        stats = httpx.get(f"{engine_url}/simulator/stats").json()
    assert {event["request_id"] for event in events} == {answer.headers["x-request-id"] for answer in answers}
    assert len({event["incarnation_id"] for event in events}) == 2
    assert sum(event["output"] for event in events) == stats["generated_tokens"]
    assert sum(event["input"] + event["input_cached"] for event in events) == stats["prompt_tokens"]
    (wallet,) = await _rows(database, "SELECT spent FROM allowance")
    assert wallet["spent"] == sum(event["cost"] for event in events)


async def test_a_process_that_still_waits_for_its_database_takes_no_connection_from_the_others(
    database: Database, tmp_path: Path
) -> None:
    port, metrics_port = free_port(), free_port()
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    environment = {
        "STEELYARD_DATABASE_URL": nowhere,
        "STEELYARD_JOURNAL_DIR": str(tmp_path / "journal"),
        "STEELYARD_GATEWAY_PORT": str(port),
        "STEELYARD_METRICS_PORT": str(metrics_port),
    }

    async def waits() -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient() as client:
                health = (await client.get(f"http://127.0.0.1:{metrics_port}/health")).json()
                return str(health["state"]).startswith("waiting for PostgreSQL")
        return False

    async with (
        _engine(database, tmp_path) as (seeded, _),
        gateway_process(database, tmp_path, port),
        child(tmp_path, "app.bootstrap.gateway", **environment),
    ):
        async with asyncio.timeout(20):
            while not await waits():
                await asyncio.sleep(0.05)
        for _ in range(12):
            async with _client(seeded, port) as client:  # a connection each, spread by the kernel
                assert (await client.get("/v1/models")).status_code == 200


async def test_sigterm_lets_a_running_stream_end(database: Database, tmp_path: Path) -> None:
    port = free_port()
    async with (
        _engine(database, tmp_path, "--chunk-ms", "50") as (seeded, _),
        gateway_process(database, tmp_path, port) as gateway,
        _client(seeded, port) as client,
    ):
        async with client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=20)) as answer:
            pieces = answer.aiter_raw()
            data = await anext(pieces)
            gateway.signal(signal.SIGTERM)
            data += b"".join([piece async for piece in pieces])
        assert data.endswith(b"data: [DONE]\n\n")
        assert await gateway.exit_code() == 0


@pytest.mark.slow
async def test_what_runs_longer_than_the_grace_ends_in_an_error_and_is_settled(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        _engine(database, tmp_path, "--chunk-ms", "100") as (seeded, _),
        gateway_process(database, tmp_path, port) as gateway,
        _client(seeded, port) as client,
    ):
        async with client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=1000)) as answer:
            pieces = answer.aiter_raw()
            data = await anext(pieces)
            gateway.signal(signal.SIGTERM)
            data += b"".join([piece async for piece in pieces])
        assert b'"code":"shutting_down"' in data
        assert b"[DONE]" not in data
        assert await gateway.exit_code() == 0
        async with settler_process(database, tmp_path):
            (event,) = await _until_posted(database, 1)
        assert (event["outcome"], event["cost"]) == ("engine_failed", 0)
        leases = await _rows(database, "SELECT granted - settled - returned AS outstanding FROM lease")
        assert [lease["outstanding"] for lease in leases] == [0]


async def test_a_killed_gateway_loses_no_answer_that_a_client_has_and_its_hold_comes_back(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        _engine(database, tmp_path, "--chunk-ms", "20") as (seeded, _),
        gateway_process(database, tmp_path, port, STEELYARD_PROGRESS_INTERVAL_S="0.1") as gateway,
        _client(seeded, port) as client,
    ):
        whole = [await client.post(_CHAT, json=chat(max_tokens=2)) for _ in range(5)]
        async with client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=1000)) as answer:
            pieces = answer.aiter_raw()
            for _ in range(10):
                await anext(pieces)
            gateway.signal(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await _drained(pieces)
        cut = answer.headers["x-request-id"]
        async with settler_process(database, tmp_path):
            events = {event["request_id"]: event for event in await _until_posted(database, 6)}
            await _until_closed(database)
    assert {answer.headers["x-request-id"] for answer in whole} | {cut} == set(events)
    assert events[cut]["outcome"] == "lost"
    assert events[cut]["usage_source"] == "engine_partial"
    assert events[cut]["output"] > 0
    leases = await _rows(database, "SELECT granted - settled - returned AS outstanding FROM lease")
    assert [lease["outstanding"] for lease in leases] == [0]
