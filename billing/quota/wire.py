"""The protocol on PostgreSQL's wire: one connection of the pool, held; given up at the first failure."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from app.core.ids import IncarnationId
from billing.quota.model import Answer, Sync

_TIMEOUT_S = 1.0
_FIRST_TIMEOUT_S = 5.0
"""For the first message over a connection: the server compiles and plans the functions for it, which takes
a tenth of a second of its CPU, and far longer where many share that."""
_WORTH_A_SECOND = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # so it says when the server's last word came between two messages
)

_SYNC = "SELECT quota_sync($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)::text"
_REGISTER = "INSERT INTO incarnation (id, host) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_IS_OPEN = "SELECT status = 'open' FROM incarnation WHERE id = $1"


def read_answer(text: str) -> Answer:
    """The answer of `quota_sync`: amounts come as strings, so that none is ever read as a float."""
    return msgspec.json.decode(text, type=Answer, strict=False)


def arguments(incarnation_id: IncarnationId, sync: Sync) -> tuple[object, ...]:
    """The arguments of `quota_sync` for a message."""
    rows = [(number, need) for number, needs in enumerate(sync.asks) for need in needs]
    return (
        incarnation_id,
        sync.sequence,
        [report.allowance_id for report in sync.leases],
        [report.returned for report in sync.leases],
        [report.want for report in sync.leases],
        [number for number, _ in rows],
        [need.allowance_id for _, need in rows],
        [need.amount for _, need in rows],
        [report.consumed for report in sync.leases],
        [report.epoch for report in sync.leases],
    )


class Wire:
    """Carries messages. Every failure is one of `ERRORS`; after it the next call takes a fresh connection."""

    ERRORS = (
        OSError,
        TimeoutError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    )

    def __init__(self, pool: asyncpg.Pool, incarnation_id: IncarnationId) -> None:
        self._pool = pool
        self._incarnation_id = incarnation_id
        self._connection: PoolConnectionProxy | None = None
        self._is_warm = False

    async def register(self, host: str) -> bool:
        """Insert the incarnation if it is new; False if it is closed."""
        connection = await self.connect()
        async with asyncio.timeout(_TIMEOUT_S):
            await connection.execute(_REGISTER, self._incarnation_id, host)
            return bool(await connection.fetchval(_IS_OPEN, self._incarnation_id))

    async def connect(self) -> PoolConnectionProxy:
        """The connection, taken from the pool if there is none that lives."""
        if self._connection is not None and not _lives(self._connection):
            await self.drop()
        if self._connection is None:
            self._connection, self._is_warm = await self._pool.acquire(timeout=_TIMEOUT_S), False
        return self._connection

    async def send_twice(self, sync: Sync) -> Answer:
        """The answer to a message, sent anew if its connection broke: doubled, it changes nothing."""
        try:
            return await self._send(sync)
        except _WORTH_A_SECOND:
            return await self._send(sync)

    async def _send(self, sync: Sync) -> Answer:
        connection = await self.connect()
        try:
            async with asyncio.timeout(_TIMEOUT_S if self._is_warm else _FIRST_TIMEOUT_S):
                text = await connection.fetchval(_SYNC, *arguments(self._incarnation_id, sync))
        except BaseException:
            await self.drop()
            raise
        self._is_warm = True
        return read_answer(text)

    async def drop(self) -> None:
        """Give up the connection, whatever it is doing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(asyncpg.InterfaceError):  # the pool has taken back what the server closed
                connection.terminate()
            await self._pool.release(connection)

    async def close(self) -> None:
        """Hand the connection back to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.release(connection)


def _lives(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the server closed it, and the pool took it back
        return False
