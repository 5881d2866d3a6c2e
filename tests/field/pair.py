"""Two gateways as processes of their own, each on a port of its own, with a settler and one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.app.gateway.house import SERVED, Seeded, add_backend, free_port, seed
from tests.app.gateway.process import gateway_process, settler_process, simulator_process
from tests.database import Database

_CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Pair:
    """urls: of the chat route of each gateway.   client: without a key."""

    seeded: Seeded
    urls: tuple[str, str]
    client: httpx.AsyncClient

    async def ask(
        self, which: int, body: dict[str, Any], *, secret: str | None = None, **more: str
    ) -> httpx.Response:
        """The answer of one of the two.   more: headers."""
        headers = {"authorization": f"Bearer {secret or self.seeded.secret}", **more}
        return await self.client.post(self.urls[which], json=body, headers=headers)

    async def until_both(self, status: int, body: dict[str, Any], *, secret: str | None = None) -> None:
        """Wait until both answer so, one after the other."""
        for which in range(2):
            await until(partial(self._answers, which, status, body=body, secret=secret))

    async def _answers(self, which: int, status: int, *, body: dict[str, Any], secret: str | None) -> bool:
        return (await self.ask(which, body, secret=secret)).status_code == status


@asynccontextmanager
async def open_pair(
    database: Database, folder: Path, *, balance: int, engine_url: str | None = None
) -> AsyncIterator[Pair]:
    """Two gateways that are ready to serve from this engine, or from a simulated one."""
    ports = free_port(), free_port()
    async with AsyncExitStack() as stack:
        if engine_url is None:
            engine_url = await stack.enter_async_context(simulator_process(folder, model=SERVED))
        seeded = await seed(database, balance=balance)
        await add_backend(database, seeded, engine_url)
        for port in ports:
            await stack.enter_async_context(gateway_process(database, folder, port))
        await stack.enter_async_context(settler_process(database, folder))
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30, limits=limits))
        first, second = (f"http://127.0.0.1:{port}{_CHAT}" for port in ports)
        yield Pair(seeded, (first, second), client)


async def until(look: Callable[[], Awaitable[bool]], *, within_s: float = 20) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(within_s):
        while not await look():
            await asyncio.sleep(0.02)
