"""The fixture of tests of whole books: a tenant who can buy, in a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.billing.journal.shop import Shop, open_shop
from tests.database import Database


@pytest.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with open_shop(database) as opened:
        yield opened
