"""Every few seconds: allowances whose use has reached a level are looked at, alerts and their outbox written.

The rows say what is to be looked at, so it costs the same with a hundred allowances and with a million. Now
and then everything is looked over, for what changed by a way that leaves no mark.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import Clock, SystemClock, from_ms
from app.core.ids import AllowanceId
from app.workers.transaction import in_transaction
from billing.alerts import watch

RAISE_ALERTS = "steelyard.raise_alerts"
LOOK_OVER_ALERTS = "steelyard.look_over_alerts"
_raised = Counter("steelyard_alerts_raised_total", "Alerts that were raised.")
_missed = Counter(
    "steelyard_alerts_unmarked_total", "Allowances that lacked their mark when all was looked over."
)


def raise_alerts(database_url: str, *, clock: Clock | None = None) -> int:
    """How many alerts were raised; nothing marked before the call is left. Raises DependencyError.

    A transaction for each step. Two at once do the work between them.
    """
    clock = clock or SystemClock()
    if not in_transaction(database_url, watch.has_work):
        return 0
    return _swept(database_url, clock) + _looked(database_url, clock)


def look_over_alerts(database_url: str, *, clock: Clock | None = None) -> int:
    """How many alerts were raised of allowances that had no mark. Raises DependencyError."""
    clock = clock or SystemClock()
    total = 0
    while found := in_transaction(database_url, partial(watch.find_missed, now=from_ms(clock.now_ms()))):
        _missed.inc(len(found))
        total += _look(database_url, found, clock=clock)
    return total


def _looked(database_url: str, clock: Clock) -> int:
    total = 0
    while due := in_transaction(database_url, watch.find_due):
        total += _look(database_url, due, clock=clock)
    return total


def _swept(database_url: str, clock: Clock) -> int:
    total = 0
    while (
        step := in_transaction(database_url, partial(watch.sweep, now=from_ms(clock.now_ms())))
    ) is not None:
        _raised.inc(step)
        total += step
    return total


def _look(database_url: str, allowances: list[AllowanceId], *, clock: Clock) -> int:
    async def look(connection: AsyncConnection) -> int:
        return await watch.look(connection, allowances, now=from_ms(clock.now_ms()))

    count = in_transaction(database_url, look)
    _raised.inc(count)
    return count
