"""Every test here runs on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from scheduler.transport.client import EngineClient


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()
