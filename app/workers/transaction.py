"""One transaction of a task: a loop and a connection of its own, because Celery's threads have none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.database import connect_engine
from app.core.errors import DependencyError

T = TypeVar("T")
_STATEMENT_TIMEOUT_S = 240.0
"""A task's statement may look at all rows; yet it ends before the task is given to another worker."""


def in_transaction(database_url: str, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """What `act` returns, committed. Raises DependencyError if the database can't be reached."""
    try:
        return asyncio.run(_acted(database_url, act))
    except OSError as error:
        raise DependencyError(f"the database can't be reached: {error}") from error


async def _acted(database_url: str, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    engine = connect_engine(database_url, pool_size=1, statement_timeout_s=_STATEMENT_TIMEOUT_S)
    try:
        async with engine.begin() as connection:
            return await act(connection)
    finally:
        await engine.dispose()
