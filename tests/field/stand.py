"""A gateway in front of an engine that a test scripts, with its settler when the books matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from sqlalchemy.ext.asyncio import create_async_engine

from app.core.clock import SystemClock
from billing.journal.model import Settled
from billing.journal.settler import Settler
from tests.app.gateway.house import House, chat, execute, open_house
from tests.database import Database
from tests.field.replay import Replay, Script

_CHAT = "/v1/chat/completions"


@dataclass
class Stand:
    """house: the gateway.   replay: its only engine."""

    house: House
    replay: Replay

    async def streamed(self, name: str, script: Script, **asked: Any) -> tuple[bytes, Settled]:
        """Play a script to a client that reads to the end: what it got, and the settlement."""
        self.replay.scripts[name] = script
        body = chat(f"script:{name}", stream=True, **asked)
        async with self.house.client.stream("POST", _CHAT, json=body) as answer:
            data = b"".join([piece async for piece in answer.aiter_raw()])
        return data, await self.house.until_settled_of(answer.headers["x-request-id"])

    async def whole(self, name: str, script: Script, **asked: Any) -> tuple[dict[str, Any], Settled]:
        """Play a script that is no stream: the answer's JSON, and the settlement."""
        self.replay.scripts[name] = script
        answer = await self.house.client.post(
            _CHAT, json=chat(asked.pop("text", "") + f"script:{name}", **asked)
        )
        return answer.json(), await self.house.until_settled_of(answer.headers["x-request-id"])

    async def cut(
        self, name: str, script: Script, *, path: str = _CHAT, **asked: Any
    ) -> tuple[bytes, Settled]:
        """Play a script that stays open, hang up once all of it was said, and wait for the settlement."""
        self.replay.scripts[name] = script
        body = {**chat(f"script:{name}"), "stream": True, **asked}
        if path != _CHAT:
            body.pop("messages")
            body["prompt"] = f"script:{name}"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.house.port)
        writer.write(request_bytes(self.house, body, path=path))
        await self.replay.until_played(name)
        data = await _until_quiet(reader)
        writer.transport.abort()
        await self.replay.until_abandoned(name)
        return data, await self.house.until_settled_of(id_in(data))


def request_bytes(
    house: House, body: dict[str, Any], *, path: str = _CHAT, secret: str | None = None
) -> bytes:
    """A POST on a connection of its own."""
    data = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {secret or house.seeded.secret}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def id_in(data: bytes) -> str:
    """The request's id in the head of an answer."""
    return data.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()


async def _until_quiet(reader: asyncio.StreamReader) -> bytes:
    """What has come, from the head on. What the gateway keeps back never comes, so silence ends it."""
    data = b""
    async with asyncio.timeout(10):
        while b"\r\n\r\n" not in data:
            data += await reader.read(65_536)
    while True:
        try:
            data += await asyncio.wait_for(reader.read(65_536), 0.03)
        except TimeoutError:
            return data


@asynccontextmanager
async def open_stand(
    database: Database, folder: Path, *, engine: str = "vllm", **changed: Any
) -> AsyncIterator[Stand]:
    """A gateway whose only backend is a scripted engine of this kind."""
    async with (
        listening() as replay,
        open_house(database, folder, engine_kind=engine, **changed) as house,
    ):
        await execute(database, "UPDATE backend SET base_url = $1", replay.base_url)
        await replay.until_probed()
        yield Stand(house, replay)


@asynccontextmanager
async def listening() -> AsyncIterator[Replay]:
    """A scripted engine, until the block ends."""
    replay = Replay()
    await replay.start()
    try:
        yield replay
    finally:
        await replay.stop()


async def post_all(database: Database, folder: Path) -> None:
    """Settle what lies in the journals of a folder, to the last record."""
    engine = create_async_engine(database.owner_sqlalchemy_url)
    settler = Settler(engine, folder=folder, clock=SystemClock())
    try:
        while await settler.look():
            pass
    finally:
        settler.close()
        await engine.dispose()


async def rows(database: Database, query: str, *arguments: Any) -> list[Any]:
    """Rows as the owner of the tables reads them."""
    connection = await asyncpg.connect(database.owner_url)
    try:
        return list(await connection.fetch(query, *arguments))
    finally:
        await connection.close()
