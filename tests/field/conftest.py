"""One gateway and one scripted engine for all tests of a module, by the engine's kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.database import Server
from tests.field.stand import Stand, open_stand


@asynccontextmanager
async def _stand(
    server: Server, template: str, folders: pytest.TempPathFactory, *, engine: str
) -> AsyncIterator[Stand]:
    database = server.create(template=template)
    try:
        async with open_stand(database, folders.mktemp("journal"), engine=engine) as opened:
            yield opened
    finally:
        server.drop(database.name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    """An engine that speaks as vLLM does."""
    async with _stand(database_server, _template, tmp_path_factory, engine="vllm") as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    """An engine that speaks as llama-server does."""
    async with _stand(database_server, _template, tmp_path_factory, engine="llama-server") as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    """An engine that tells its usage at the end only, and has no tokenizer to ask."""
    async with _stand(database_server, _template, tmp_path_factory, engine="openai") as opened:
        yield opened
