"""Fixture of the tests of alerts on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.billing.alerts.tower import Tower, open_tower
from tests.database import Database


@pytest_asyncio.fixture
async def tower(database: Database) -> AsyncIterator[Tower]:
    async with open_tower(database) as opened:
        yield opened
