"""One running house for all tests of a module; tests tell their requests apart by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.app.gateway.house import House, open_house
from tests.database import Server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    database_server: Server, _template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """A gateway with one simulated engine; short deadlines, so that faults show quickly."""
    database = database_server.create(template=_template)
    folder: Path = tmp_path_factory.mktemp("journal")
    try:
        async with open_house(
            database, folder, first_token_timeout_s=1.0, idle_timeout_s=1.0, body_timeout_s=1.0
        ) as opened:
            yield opened
    finally:
        database_server.drop(database.name)
