"""Keeps a gateway's snapshot up to date: a full load, then what PostgreSQL notifies, within a second.

Limits, keys and tenants are applied by their id, so that a revocation does not wait for the rest; models,
backends and prices are reloaded together. Limits that change by themselves (a period, a plan or an override
begins or ends) are brought up to date by whichever gateway looks first. When the connection is lost, the
last snapshot stays in use and the next connection begins with a full load: a notification that was missed
is thereby made good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg

from app.catalog import queries
from app.catalog.limits import Limit, LimitState
from app.catalog.snapshot import Fleet, Snapshot
from app.catalog.turner import Turner
from app.core.clock import Clock
from app.core.ids import AllowanceId, KeyId, TenantId

log = logging.getLogger(__name__)

CHANNEL = "steelyard_changes"
_LOST = ""
_FOREIGN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)

OnFleet = Callable[[Fleet], None]
OnAllowance = Callable[[AllowanceId], None]
OnTask = Callable[[str], None]
OnTenants = Callable[[], None]
Connect = Callable[[], Awaitable[queries.Connection]]

_OF_FLEET = frozenset({"model", "deployment", "backend", "price_book", "price_version"})
_TURN_AGAIN_S = 0.2
_TURN_FIRST_S = 2.0
"""How long the first load waits for limits that are due: enough for all but the largest tenants."""
_KEYS_AT_ONCE = 500


class CatalogFeed:
    """Loads and follows the catalogue with one connection of its own.

    on_fleet: called after each change of models, backends or prices.   on_allowance: called for each
    allowance whose limit changed or that is recalled.   on_task: called with the id of each task that
    was closed or got another budget.   on_tenants: called after tenants changed.   connect: how to reach
    the database, if not by its address.   connected, last_error: for health.
    """

    def __init__(
        self,
        database_url: str,
        *,
        snapshot: Snapshot,
        clock: Clock,
        on_fleet: OnFleet,
        on_allowance: OnAllowance,
        on_task: OnTask | None = None,
        on_tenants: OnTenants | None = None,
        connect: Connect | None = None,
        reload_s: float = 30.0,
        backoff_s: float = 0.2,
        max_backoff_s: float = 5.0,
    ) -> None:
        self._database_url = database_url
        self._snapshot = snapshot
        self._clock = clock
        self._on_fleet = on_fleet
        self._on_allowance = on_allowance
        self._on_task = on_task
        self._on_tenants = on_tenants
        self._connect = connect or self._dial
        self._connect_to_turn = connect or self._dial_to_turn
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
        connection = await self._connect()
        turner = Turner(self._connect_to_turn)
        try:
            self._changes = asyncio.Queue()
            connection.add_termination_listener(self._lost)
            await connection.add_listener(CHANNEL, self._heard)
            await turner.turn(wait_s=_TURN_FIRST_S)
            await self._load_all(connection)
            self.connected, self.last_error = True, None
            await self._apply_changes(connection, turner)
        finally:
            connection.terminate()
            await turner.close()

    async def _dial(self) -> queries.Connection:
        return await asyncpg.connect(self._database_url, timeout=5.0, command_timeout=10.0)

    async def _dial_to_turn(self) -> queries.Connection:
        return await asyncpg.connect(self._database_url, timeout=5.0)

    async def _apply_changes(self, connection: queries.Connection, turner: Turner) -> None:
        reload_at = self._clock.monotonic() + self._reload_s
        turn_at = 0.0
        while True:
            wake_at = min(reload_at, max(turn_at, self._snapshot.limit_book.next_due_s()))
            changes = await self._next_changes(wake_at - self._clock.monotonic())
            if _LOST in changes:
                return
            await self._apply(connection, changes)
            now = self._clock.monotonic()
            if now >= max(turn_at, self._snapshot.limit_book.next_due_s()):
                turn_at = now + _TURN_AGAIN_S
                await turner.turn()
            if now >= reload_at:
                await self._load_all(connection)
                reload_at = self._clock.monotonic() + self._reload_s

    async def _next_changes(self, timeout_s: float) -> set[str]:
        """All that was told; none if nothing is within the time."""
        changes = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_s, 0.0)):  # wait_for may lose a cancellation to an item
                changes.add(await self._changes.get())
        while not self._changes.empty():
            changes.add(self._changes.get_nowait())
        return changes

    async def _apply(self, connection: queries.Connection, changes: set[str]) -> None:
        """Limits first, so that no key is known before its limits; then keys and tenants."""
        named = sorted(change.partition(":")[::2] for change in changes)
        await self._apply_limits(connection, [changed for kind, changed in named if kind == "limits"])
        keys = [KeyId(changed_id) for kind, changed_id in named if kind == "api_key"]
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            await self._apply_keys(connection, keys[first : first + _KEYS_AT_ONCE])
        if tenants := [TenantId(changed_id) for kind, changed_id in named if kind == "tenant"]:
            await self._apply_tenants(connection, tenants)
        kinds = {kind for kind, _ in named}
        if "project" in kinds:
            self._snapshot.put_projects(*await queries.load_projects(connection))
        if kinds & _OF_FLEET:
            await self._load_fleet(connection)

    async def _apply_limits(self, connection: queries.Connection, changed: list[str]) -> None:
        """Of whole tenants, whose plan may bring other prices, or of one scope of theirs (`tenant/scope`)."""
        if not changed:
            return
        named = [change.partition("/")[::2] for change in changed]
        tenants = [TenantId(tenant_id) for tenant_id, scope_id in named if not scope_id]
        scopes = [(TenantId(each), scope_id) for each, scope_id in named if scope_id and each not in tenants]
        told = sorted({TenantId(each) for each, _ in named})
        states = await queries.load_limit_states(connection, told)
        if tenants:
            self._take_limits(await queries.load_limits(connection, tenants), states)
            await self._apply_tenants(connection, tenants)
        if scopes:
            await self._apply_scopes(connection, scopes)
        self._take_due(states)

    async def _apply_scopes(self, connection: queries.Connection, scopes: list[tuple[TenantId, str]]) -> None:
        for (tenant_id, scope_id), limits in (
            await queries.load_limits_of_scopes(connection, scopes)
        ).items():
            self._snapshot.limit_book.put_scope(tenant_id, scope_id, limits=limits)

    async def _apply_keys(self, connection: queries.Connection, key_ids: list[KeyId]) -> None:
        keys = await queries.load_keys(connection, key_ids)
        # What told of the keys' limits may still be on its way.
        await self._apply_scopes(connection, [(key.tenant_id, key.key_id) for key in keys])
        for key_id in key_ids:
            self._snapshot.drop_key(key_id)
        self._snapshot.put_keys(keys, whole=False)

    async def _apply_tenants(self, connection: queries.Connection, tenant_ids: list[TenantId]) -> None:
        tenants = await queries.load_tenants(connection, tenant_ids)
        for gone in set(tenant_ids) - {tenant.tenant_id for tenant in tenants}:
            self._snapshot.drop_tenant(gone)
        self._snapshot.put_tenants(tenants, whole=False)
        if self._on_tenants is not None:
            self._on_tenants()

    async def _load_all(self, connection: queries.Connection) -> None:
        book = self._snapshot.limit_book
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            keys = await queries.load_keys(connection)
            tenants = await queries.load_tenants(connection)
            projects = await queries.load_projects(connection)
            states = await queries.load_limit_states(connection)
            lacking = [each for each, state in states.items() if book.lacks(each, state.version)]
            limits = await queries.load_limits(connection, lacking)
            fleet = await queries.load_fleet(connection)
        self._take_limits(limits, states)
        self._take_due(states)
        self._snapshot.put_keys(keys, whole=True)
        self._snapshot.put_tenants(tenants, whole=True)
        self._snapshot.put_projects(*projects)
        self._take_fleet(fleet)
        if self._on_tenants is not None:
            self._on_tenants()
        self._snapshot.loaded_ms = self._clock.now_ms()
        self._loaded.set()

    def _take_limits(
        self, limits: Mapping[TenantId, list[Limit]], states: Mapping[TenantId, LimitState]
    ) -> None:
        for tenant_id, found in limits.items():
            if (state := states.get(tenant_id)) is not None:
                self._snapshot.limit_book.put(tenant_id, found, version=state.version)

    def _take_due(self, states: Mapping[TenantId, LimitState]) -> None:
        now = self._clock.monotonic()
        self._snapshot.limit_book.put_due(
            {
                tenant_id: None if state.in_ms is None else now + state.in_ms / 1000
                for tenant_id, state in states.items()
            }
        )

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
        elif kind == "task":
            if self._on_task is not None:
                self._on_task(changed_id)
        else:
            self._changes.put_nowait(change)

    def _lost(self, _connection: Any) -> None:
        self._changes.put_nowait(_LOST)
