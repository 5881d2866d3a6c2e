"""The fixtures of tests that read usage."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.app.control.world import World, open_world
from tests.app.insights.metered import Traffic, open_traffic
from tests.database import Database


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    async with open_world(database) as opened:
        yield opened


@pytest.fixture
async def traffic(world: World) -> Traffic:
    return await open_traffic(world)
