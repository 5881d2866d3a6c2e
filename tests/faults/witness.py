"""Looks on while processes die: that no wallet is ever overdrawn, and what the journals say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import asyncpg

from tests.faults.finding import Finding, Wrong
from tests.faults.stack import Stack

_EVERY_S = 0.1
_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
"""What a client of a database that is killed under it may meet."""
_OVERDRAWN = """
SELECT a.id, quota_available(a.id)::text FROM allowance a WHERE quota_available(a.id) < 0
UNION ALL
SELECT w.id, (a.limit_amount - w.credit_limit - a.spent)::text FROM wallet w
  JOIN allowance a ON a.id = w.allowance_id WHERE a.spent > a.limit_amount"""


@dataclass
class Witness:
    """looks: how often the database answered.   findings: limits that were ever exceeded."""

    stack: Stack
    looks: int = 0
    findings: list[Finding] = field(default_factory=list)
    _connection: asyncpg.Connection | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Witness]:
        """Look ten times a second until the end of the block."""
        watch = asyncio.create_task(self._watch(), name="witness")
        try:
            yield self
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            self._let_go()

    def look_at_journals(self) -> None:
        """Read them on, before their settler frees what it has posted."""
        self.stack.journals.read_on()

    async def _watch(self) -> None:
        while True:
            self.look_at_journals()
            try:
                await self._look_at_limits()
            except _AWAY:
                self._let_go()
            await asyncio.sleep(_EVERY_S)

    async def _look_at_limits(self) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.stack.owner_url, timeout=2)
        for subject, so in await self._connection.fetch(_OVERDRAWN, timeout=5):
            self.findings.append(Finding(Wrong.NEGATIVE_BALANCES, subject, f"at one time {so}"))
        self.looks += 1

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
