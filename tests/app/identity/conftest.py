"""The fixture of tests that need a whole control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.app.control.world import World, open_world
from tests.database import Database


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    async with open_world(database) as opened:
        yield opened
