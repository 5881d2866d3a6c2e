"""How long until every gateway acts on a change: measured by requests, from before it is written."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.identity import audit, keys, tenants
from app.identity.audit import Trail
from bench.quota_buyers import Buyer, new_buyers, put_limit
from bench.quota_crowd import Caller, Wish
from bench.quota_rounds import known
from bench.quota_stack import Stack

_PLENTY = 10**15
_BETWEEN_S = 0.005
_LONGEST_S = 10.0
Change = Callable[[], Awaitable[object]]


async def measure(stack: Stack, *, rounds: int) -> dict[str, Any]:
    """The times of each kind of change, in milliseconds until the last gateway acted on it."""
    found: dict[str, list[float]] = {}
    [buyer] = await new_buyers(stack.database, [_PLENTY])
    await put_limit(stack.engine, buyer, what="requests", window="day", amount=10**6)
    await put_limit(stack.engine, buyer, what="max_output", window="request", amount=100)
    await known(stack, buyer)
    watch = _Watch(stack, buyer)
    for _ in range(rounds):
        await watch.settle_down()
        changes: tuple[tuple[str, Change, int], ...] = (
            ("ceiling_lowered", lambda: _ceiling(stack, buyer, amount=4), 400),
            ("ceiling_raised", lambda: _ceiling(stack, buyer, amount=100), 200),
            ("limit_lowered_below_what_is_lent", lambda: _day(stack, buyer, amount=0), 429),
            ("limit_raised", lambda: _day(stack, buyer, amount=10**6), 200),
            ("tenant_suspended", lambda: _status(stack, buyer, status="suspended"), 403),
            ("tenant_resumed", lambda: _status(stack, buyer, status="active"), 200),
        )
        for name, change, status in changes:
            found.setdefault(name, []).append(await watch.until_all(status, change))
        secret, key_id = await _new_key(stack, buyer)
        keyed = _Watch(stack, buyer, secret=secret)
        await keyed.until_all(200, _nothing)
        took = await keyed.until_all(401, partial(_revoke, stack, buyer, key_id=key_id))
        found.setdefault("key_revoked", []).append(took)
        keyed.close()
    watch.close()
    return {
        "rounds": rounds,
        "gateways": len(stack.gateways),
        "ms": {
            name: {"p50": round(statistics.median(took), 1), "max": round(max(took), 1)}
            for name, took in found.items()
        },
        "max_ms": round(max(max(took) for took in found.values()), 1),
    }


class _Watch:
    """Asks all gateways again and again what a key gets."""

    def __init__(self, stack: Stack, buyer: Buyer, *, secret: str | None = None) -> None:
        ports = [gateway.port for gateway in stack.gateways]
        self._callers = [Caller([port], first=0) for port in ports]
        self._wish = Wish(secret or buyer.secret, 8, 8, streamed=False, ttft_ms=1)

    async def until_all(self, status: int, change: Change) -> float:
        """Milliseconds from before a change until the first such answer of the gateway that was last."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(_as_task(change))
            waits = [group.create_task(self._first(caller, status)) for caller in self._callers]
        return (max(wait.result() for wait in waits) - begun) * 1000

    async def settle_down(self) -> None:
        """All gateways serve, and borrow what they need."""
        await self.until_all(200, _nothing)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()

    async def _first(self, caller: Caller, status: int) -> float:
        async with asyncio.timeout(_LONGEST_S):
            while (await caller.ask(self._wish)).status != status:
                await asyncio.sleep(_BETWEEN_S)
        return asyncio.get_running_loop().time()


async def _as_task(change: Change) -> None:
    await change()


async def _nothing() -> None:
    return None


async def _day(stack: Stack, buyer: Buyer, *, amount: int) -> None:
    await put_limit(stack.engine, buyer, what="requests", window="day", amount=amount)


async def _ceiling(stack: Stack, buyer: Buyer, *, amount: int) -> None:
    await put_limit(stack.engine, buyer, what="max_output", window="request", amount=amount)


@asynccontextmanager
async def _recorded(stack: Stack) -> AsyncIterator[tuple[AsyncConnection, Trail]]:
    """A transaction as the control API makes it, with its entry in the audit log."""
    async with stack.engine.begin() as connection:
        trail = Trail("bench")
        yield connection, trail
        await audit.append(connection, trail, now=datetime.now(UTC))


async def _status(stack: Stack, buyer: Buyer, *, status: str) -> None:
    async with _recorded(stack) as (connection, trail):
        await tenants.change_tenant(connection, buyer.tenant_id, changes={"status": status}, trail=trail)


async def _new_key(stack: Stack, buyer: Buyer) -> tuple[str, str]:
    async with _recorded(stack) as (connection, trail):
        made, secret = await keys.create_key(
            connection,
            buyer.project_id,
            name="bench",
            within=None,
            now=datetime.now(UTC),
            trail=trail,
        )
    return secret, made.id


async def _revoke(stack: Stack, buyer: Buyer, *, key_id: str) -> None:
    async with _recorded(stack) as (connection, trail):
        await keys.revoke_key(connection, key_id, within=buyer.tenant_id, now=datetime.now(UTC), trail=trail)
