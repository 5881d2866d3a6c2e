"""Fixture of the quota tests that need a real authority."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.billing.quota.desk import Desk, open_desk
from tests.database import Database


@pytest_asyncio.fixture
async def desk(database: Database) -> AsyncIterator[Desk]:
    async with open_desk(database) as opened:
        yield opened
