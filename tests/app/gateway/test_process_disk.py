"""The gateway as a process whose disk fails it: what its clients are told, and that nothing is lost."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.app.gateway.house import SERVED, Seeded, add_backend, chat, free_port, seed
from tests.app.gateway.process import Child, gateway_process, settler_process, simulator_process
from tests.database import Database

_CHAT = "/v1/chat/completions"
BROKEN = 4
"""The exit code of a process that can't trust its journal."""


@asynccontextmanager
async def _engine(database: Database, folder: Path) -> AsyncIterator[Seeded]:
    async with simulator_process(folder, "--chunk-ms", "10", model=SERVED) as base_url:
        seeded = await seed(database, balance=10 * 10**12)
        await add_backend(database, seeded, base_url)
        yield seeded


def _client(seeded: Seeded, port: int) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {seeded.secret}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20)


async def _rows(database: Database, query: str) -> list[Any]:
    connection = await asyncpg.connect(database.owner_url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def _until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await look():
            await asyncio.sleep(0.02)


async def _settled_to_the_end(database: Database) -> dict[str, Any]:
    """The events by request id, once no incarnation is open and no lease is left."""

    async def look() -> bool:
        return not await _rows(database, "SELECT FROM incarnation WHERE status = 'open'")

    await _until(look)
    assert not await _rows(database, "SELECT FROM lease WHERE granted - settled - returned <> 0")
    (wallet,) = await _rows(database, "SELECT spent FROM allowance")
    events = await _rows(database, "SELECT * FROM usage_event")
    assert wallet["spent"] == sum(event["cost"] for event in events)
    return {event["request_id"]: event for event in events}


def _journal(folder: Path) -> Path:
    (path,) = (folder / "journal").glob("*.journal")
    return path


def _remove(folder: Path) -> None:
    _journal(folder).unlink()


def _break(folder: Path) -> None:
    (folder / "journal" / "broken").touch()


@pytest.mark.parametrize("happens", [_remove, _break])
async def test_a_gateway_whose_journal_broke_ends_with_a_code_of_its_own_and_is_settled(
    database: Database, tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    port = free_port()
    async with (
        _engine(database, tmp_path) as seeded,
        settler_process(database, tmp_path),
        gateway_process(
            database, tmp_path, port, program="tests.app.gateway.failing_sync_process"
        ) as gateway,
        _client(seeded, port) as client,
    ):
        whole = [await client.post(_CHAT, json=chat()) for _ in range(3)]
        async with client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=300)) as running:
            pieces = running.aiter_raw()
            await anext(pieces)
            happens(tmp_path)
            refused = await client.post(_CHAT, json=chat())
            told = b"".join([piece async for piece in pieces])
        assert await gateway.exit_code() == BROKEN
        events = await _settled_to_the_end(database)
    assert {answer.status_code for answer in whole} == {200}
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "journal_unwritable")
    assert b'"error"' in told
    assert b"[DONE]" not in told
    ids = [answer.headers["x-request-id"] for answer in (*whole, refused, running)]
    assert set(events) == set(ids)
    assert [events[one]["outcome"] for one in ids[:3]] == ["completed"] * 3
    assert (events[ids[4]]["outcome"], events[ids[4]]["cost"]) == ("lost", 0)


async def test_a_gateway_that_can_not_write_refuses_says_so_everywhere_and_goes_on_by_itself(
    database: Database, tmp_path: Path
) -> None:
    port, probes = free_port(), free_port()
    async with (
        _engine(database, tmp_path) as seeded,
        settler_process(database, tmp_path),
        gateway_process(database, tmp_path, port, metrics_port=probes) as gateway,
        _client(seeded, port) as client,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{probes}") as probe,
    ):
        whole = await client.post(_CHAT, json=chat())
        async with client.stream("POST", _CHAT, json=chat(stream=True, max_tokens=200)) as running:
            pieces = running.aiter_raw()
            await anext(pieces)
            _, hard = _limit_files(gateway, _journal(tmp_path).stat().st_size)
            told = b"".join([piece async for piece in pieces])
        assert b'"code":"journal_unwritable"' in told
        refused = [await client.post(_CHAT, json=chat()) for _ in range(3)]
        assert Counter(one.json()["error"]["code"] for one in refused) == {"journal_unwritable": 3}
        health = await probe.get("/health")
        assert (health.status_code, health.json()["journal_writable"]) == (503, False)
        assert "File too large" in health.json()["journal_failure"]
        assert "steelyard_journal_writable 0" in (await probe.get("/metrics")).text
        _limit_files(gateway, hard)

        async def is_healthy() -> bool:
            return (await probe.get("/health")).status_code == 200

        await _until(is_healthy)
        assert "steelyard_journal_writable 1" in (await probe.get("/metrics")).text
        again = await client.post(_CHAT, json=chat())
        assert again.status_code == 200
        await _until(lambda: _has(gateway.log, again.headers["x-request-id"]))
        gateway.process.terminate()
        assert await gateway.exit_code() == 0
        events = await _settled_to_the_end(database)
    late = events.pop(running.headers["x-request-id"])
    assert (late["outcome"], late["cost"], late["flags"]) == ("lost", 0, ["not_delivered"])
    assert late["output"] == 200
    assert set(events) == {answer.headers["x-request-id"] for answer in (whole, again)}


async def _has(log: Path, request_id: str) -> bool:
    """Whether the access log tells of a request: it writes on as well."""
    return request_id in log.read_text()


def _limit_files(gateway: Child, size: int) -> tuple[int, int]:
    """Let no file of the process grow beyond a size; returns the limits that it had."""
    pid = gateway.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    return soft, hard
