"""Brings limits that change by themselves up to date, over a connection of its own.

A tenant with many thousands of keys takes seconds; what the feed is told meanwhile, a key's revocation above
all, does not wait for it. It has no time limit either: what is given up half-way would begin anew, for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from app.catalog import queries

log = logging.getLogger(__name__)

_AT_ONCE = 200
_FOREIGN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


class Turner:
    """One at a time.   connect: how to reach the database, without a limit on how long a statement takes."""

    def __init__(self, connect: Callable[[], Awaitable[queries.Connection]]) -> None:
        self._connect = connect
        self._connection: queries.Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def turn(self, *, wait_s: float = 0.0) -> None:
        """Begin, unless it is under way; of what that changes the feed is told as of all else. Never raises.

        wait_s: return when it is done, or after this long.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._turn(), name="turn-limits")
        if wait_s:
            await asyncio.wait((self._task,), timeout=wait_s)

    async def close(self) -> None:
        """Give up the connection, without a word that would undo what the database is at."""
        self._drop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _turn(self) -> None:
        try:
            if self._connection is None:
                self._connection = await self._connect()
                self._connection.add_log_listener(_warn)
            while await queries.resolve_due(self._connection, most=_AT_ONCE) == _AT_ONCE:
                pass
        except _FOREIGN as error:
            log.warning("limits_not_turned", extra={"reason": type(error).__name__})
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _warn(_connection: Any, message: Any) -> None:
    """asyncpg's callback: what a function of ours warns of."""
    if message.severity_en == "WARNING":
        log.warning("database_warned", extra={"reason": message.message})
