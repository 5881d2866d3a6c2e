from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.core.probe_server import ProbeServer


class Process:
    ready = True


@pytest.fixture
async def process(unused_tcp_port: int) -> AsyncIterator[tuple[Process, str]]:
    state = Process()
    server = ProbeServer(health=lambda: (state.ready, {"lag_ms": 3}), metrics=lambda: b"steelyard_up 1\n")
    await server.start("127.0.0.1", unused_tcp_port)
    yield state, f"http://127.0.0.1:{unused_tcp_port}"
    await server.close()


async def test_health_follows_readiness_and_tells_its_facts(process: tuple[Process, str]) -> None:
    state, url = process
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/health")).json() == {"status": "ok", "lag_ms": 3}
        state.ready = False
        answer = await client.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")


async def test_metrics_are_served_as_text_and_nothing_else_is(process: tuple[Process, str]) -> None:
    async with httpx.AsyncClient(base_url=process[1]) as client:
        assert (await client.get("/metrics")).text == "steelyard_up 1\n"
        assert (await client.get("/metrics/")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"A" * 20_000, b"GET /metrics HTTP"]
)
async def test_garbage_closes_its_connection_and_harms_no_other(
    process: tuple[Process, str], garbage: bytes
) -> None:
    host, port = process[1].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(garbage)
    writer.write_eof()
    assert b"200" not in (await reader.read())[:20]
    writer.close()
    async with httpx.AsyncClient(base_url=process[1]) as client:
        assert (await client.get("/health")).status_code == 200
