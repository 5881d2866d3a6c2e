"""The embedded llama-server itself, left after each chunk: what is billed lies between client and engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.stack.data_dir import DataDir, cache_folder
from app.stack.demo_model import SMOLLM2
from app.stack.model_file import provide
from bench.counters import EngineCounter
from bench.hangup import read_until
from billing.metering.model import Outcome, UsageSource
from tests.app.gateway.house import House, chat, execute, free_port, open_house
from tests.app.gateway.process import child, until_ready
from tests.database import Database
from tests.field.pair import until
from tests.field.stand import request_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
_CUTS = range(1, 9)
_ASKED = 400


@asynccontextmanager
async def _llama_server(folder: Path) -> AsyncIterator[str]:
    """The embedded engine as `steelyard up` starts it, with one thread."""
    model = provide(cache_folder(DataDir(folder)), report=lambda _: None)
    port = free_port()
    arguments = (f"--model={model}", f"--alias={SMOLLM2.name}", f"--port={port}", "--slots=1", "--threads=1")
    async with child(folder, "app.stack.engine_process", *arguments) as started:
        await until_ready(port, started)
        yield f"http://127.0.0.1:{port}"


async def _serves(house: House) -> bool:
    answer = await house.client.post("/v1/chat/completions", json=chat(max_tokens=1))
    return answer.status_code == 200


async def test_each_cut_of_a_real_stream_bills_what_was_said_and_not_more_than_was_made(
    database: Database, tmp_path: Path
) -> None:
    async with (
        _llama_server(tmp_path) as url,
        open_house(database, tmp_path, engine_kind="llama-server", served=SMOLLM2.name) as house,
    ):
        await execute(database, "UPDATE backend SET base_url = $1", url)
        await until(lambda: _serves(house), within_s=60)
        counter = EngineCounter(url)
        try:
            for chunks in _CUTS:
                await _cut(house, counter, chunks=chunks)
        finally:
            await counter.close()


async def _cut(house: House, counter: EngineCounter, *, chunks: int) -> None:
    """Leave after so many chunks; compare what the client saw, what is billed and what the engine made."""
    await counter.idle_after_s()
    before = await counter.generated()
    body = chat(f"Tell a long story about {chunks} merchants", stream=True, max_tokens=_ASKED)
    seen = await read_until(request_bytes(house, body), host="127.0.0.1", port=house.port, chunks=chunks)
    settled = await house.until_settled_of(seen.request_id)
    await counter.idle_after_s()
    made = await counter.generated() - before
    assert settled.outcome is Outcome.CLIENT_CANCELLED
    assert settled.usage_source in (UsageSource.ENGINE_PARTIAL, UsageSource.TOKENIZER)
    assert settled.billed == settled.usage
    assert settled.usage.input + settled.usage.input_cached > 0
    assert seen.deltas <= settled.usage.output <= made < _ASKED
