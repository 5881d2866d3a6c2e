"""Keeps a gateway's snapshot up to date: a full load, then what PostgreSQL notifies, within a second.

Keys and tenants are applied by their id, so that a revocation does not wait for the rest; models,
backends and prices are reloaded together. When the connection is lost, the last snapshot stays in use
and the next connection begins with a full load: a notification that was missed is thereby made good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import asyncpg

from app.catalog import queries
from app.catalog.snapshot import Fleet, Snapshot
from app.core.clock import Clock
from app.core.ids import AllowanceId, KeyId, TenantId

log = logging.getLogger(__name__)

CHANNEL = "steelyard_changes"
_LOST = ""
_FOREIGN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)

OnFleet = Callable[[Fleet], None]
OnAllowance = Callable[[AllowanceId], None]


class CatalogFeed:
    """Loads and follows the catalogue with one connection of its own.

    on_fleet: called after each change of models, backends or prices.   on_allowance: called for each
    allowance whose limit changed or that is recalled.   connected, last_error: for health.
    """

    def __init__(
        self,
        database_url: str,
        *,
        snapshot: Snapshot,
        clock: Clock,
        on_fleet: OnFleet,
        on_allowance: OnAllowance,
        reload_s: float = 30.0,
        backoff_s: float = 0.2,
        max_backoff_s: float = 5.0,
    ) -> None:
        self._database_url = database_url
        self._snapshot = snapshot
        self._clock = clock
        self._on_fleet = on_fleet
        self._on_allowance = on_allowance
        self._reload_s = reload_s
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._changes: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()
        self.connected = False
        self.last_error: str | None = None

    async def start(self) -> None:
        """Follow from now on; returns after the first full load, however long the database stays away."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="catalog-feed")
        await self._loaded.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self) -> None:
        delay = self._backoff_s
        while True:
            try:
                await self._follow_one_connection()
                delay = self._backoff_s
            except _FOREIGN as error:
                self.last_error = f"{type(error).__name__}: the catalogue can't be read from PostgreSQL"
                log.warning("catalog_feed_lost", extra={"reason": type(error).__name__, "retry_s": delay})
                delay = min(delay * 2, self._max_backoff_s)
            self.connected = False
            await asyncio.sleep(delay)

    async def _follow_one_connection(self) -> None:
        """Load everything, then apply changes; returns when the connection is lost."""
        connection = await asyncpg.connect(self._database_url, timeout=5.0, command_timeout=10.0)
        try:
            self._changes = asyncio.Queue()
            connection.add_termination_listener(self._lost)
            await connection.add_listener(CHANNEL, self._heard)
            await self._load_all(connection)
            self.connected, self.last_error = True, None
            await self._apply_changes(connection)
        finally:
            connection.terminate()

    async def _apply_changes(self, connection: queries.Connection) -> None:
        reload_at = self._clock.monotonic() + self._reload_s
        while True:
            try:
                timeout_s = max(0.0, reload_at - self._clock.monotonic())
                changes = {await asyncio.wait_for(self._changes.get(), timeout_s)}
            except TimeoutError:
                await self._load_all(connection)
                reload_at = self._clock.monotonic() + self._reload_s
                continue
            while not self._changes.empty():
                changes.add(self._changes.get_nowait())
            if _LOST in changes:
                return
            await self._apply(connection, changes)

    async def _apply(self, connection: queries.Connection, changes: set[str]) -> None:
        """Keys and tenants first, one by one; what else changed with one reload."""
        rest = False
        for change in sorted(changes):
            kind, _, changed_id = change.partition(":")
            if kind == "api_key":
                await self._apply_key(connection, KeyId(changed_id))
            elif kind == "tenant":
                await self._apply_tenant(connection, TenantId(changed_id))
            elif kind == "project":
                self._snapshot.put_projects(await queries.load_archived_projects(connection))
            elif kind == "allowance":
                self._snapshot.put_tenants(await queries.load_tenants(connection), whole=True)
            else:
                rest = True
        if rest:
            await self._load_fleet(connection)

    async def _apply_key(self, connection: queries.Connection, key_id: KeyId) -> None:
        keys = await queries.load_keys(connection, key_id)
        self._snapshot.drop_key(key_id)
        self._snapshot.put_keys(keys, whole=False)

    async def _apply_tenant(self, connection: queries.Connection, tenant_id: TenantId) -> None:
        tenants = await queries.load_tenants(connection, tenant_id)
        if not tenants:
            self._snapshot.drop_tenant(tenant_id)
        self._snapshot.put_tenants(tenants, whole=False)

    async def _load_all(self, connection: queries.Connection) -> None:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            keys = await queries.load_keys(connection)
            tenants = await queries.load_tenants(connection)
            archived = await queries.load_archived_projects(connection)
            fleet = await queries.load_fleet(connection)
        self._snapshot.put_keys(keys, whole=True)
        self._snapshot.put_tenants(tenants, whole=True)
        self._snapshot.put_projects(archived)
        self._take_fleet(fleet)
        self._snapshot.loaded_ms = self._clock.now_ms()
        self._loaded.set()

    async def _load_fleet(self, connection: queries.Connection) -> None:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            fleet = await queries.load_fleet(connection)
        self._take_fleet(fleet)

    def _take_fleet(self, fleet: Fleet) -> None:
        self._snapshot.fleet = fleet
        self._on_fleet(fleet)

    def _heard(self, *told: object) -> None:
        """asyncpg's callback: connection, process id, channel, payload."""
        change = str(told[-1])
        kind, _, changed_id = change.partition(":")
        if kind == "allowance":
            self._on_allowance(AllowanceId(changed_id))
            if self._snapshot.knows_wallet(AllowanceId(changed_id)):
                return  # a limit changed: nothing of it is in the snapshot
        self._changes.put_nowait(change)

    def _lost(self, _connection: Any) -> None:
        self._changes.put_nowait(_LOST)
