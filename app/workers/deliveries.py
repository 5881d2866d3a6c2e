"""Every few seconds: what waits in the outbox of alerts is sent, and how it went is written.

No transaction stands open while a receiver is waited for. Killed between the two, a delivery is sent again
under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from functools import partial

from prometheus_client import Counter, Gauge
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import Clock, SystemClock, from_ms
from app.core.settings import Settings
from app.workers import mail, webhook
from app.workers.mail import MailServer
from app.workers.transaction import in_transaction
from billing.alerts import outbox
from billing.alerts.model import Attempt, Outcome

DELIVER_ALERTS = "steelyard.deliver_alerts"
ROUNDS = 50
"""Of one call: what is left then waits for the next tick, so a worker's thread comes free again."""
_ended = Counter(
    "steelyard_alert_attempts_total", "Attempts to deliver an alert, by what became of it.", ["state"]
)
_pending = Gauge("steelyard_alert_deliveries_pending", "Deliveries of alerts that wait for a try.")
_dead = Gauge("steelyard_alert_deliveries_dead", "Deliveries of alerts that were given up.")
_age = Gauge("steelyard_alert_oldest_pending_seconds", "Age of the oldest delivery that waits for a try.")
_one_at_a_time = threading.Lock()
_log = logging.getLogger(__name__)


def deliver_alerts(database_url: str, *, settings: Settings, clock: Clock | None = None) -> int:
    """How many deliveries were tried. Raises DependencyError if the database can't be reached.

    One call of a process at a time does the work, so slow receivers never take all its threads.
    """
    if not _one_at_a_time.acquire(blocking=False):
        return 0
    try:
        return _delivered(database_url, settings, clock=clock or SystemClock())
    finally:
        _one_at_a_time.release()


def _delivered(database_url: str, settings: Settings, *, clock: Clock) -> int:
    tried = 0
    for _ in range(ROUNDS):
        claimed = in_transaction(database_url, partial(outbox.claim, now=from_ms(clock.now_ms())))
        if not claimed:
            break
        tried += len(claimed)
        outcomes = asyncio.run(_sent(claimed, settings, clock=clock))
        _record(database_url, outcomes, clock=clock)
    _show(in_transaction(database_url, outbox.waiting), clock=clock)
    return tried


async def _sent(claimed: list[Attempt], settings: Settings, *, clock: Clock) -> list[tuple[Attempt, Outcome]]:
    server = MailServer.of(settings)
    now = from_ms(clock.now_ms())

    async def send(attempt: Attempt) -> Outcome:
        try:
            if attempt.kind == "email":
                return await mail.send(attempt, server=server)
            return await webhook.send(attempt, private_hosts=settings.webhook_private_hosts, now=now)
        except Exception as error:  # noqa: BLE001 - the rim: one that can't be sent holds up no other
            _log.exception("alert_not_sendable", extra={"delivery_id": attempt.delivery.id})
            return Outcome(error=f"it could not be made: {type(error).__name__}")

    outcomes = await asyncio.gather(*map(send, claimed))
    return list(zip(claimed, outcomes, strict=True))


def _record(database_url: str, outcomes: list[tuple[Attempt, Outcome]], *, clock: Clock) -> None:
    now = from_ms(clock.now_ms())
    outcomes = sorted(outcomes, key=lambda each: each[0].delivery.endpoint_id)

    async def record(connection: AsyncConnection) -> list[str]:
        return [
            await outbox.record(connection, attempt, outcome=outcome, now=now, draw=random.random())  # noqa: S311
            for attempt, outcome in outcomes
        ]

    states = in_transaction(database_url, record)
    for (attempt, outcome), state in zip(outcomes, states, strict=True):
        _ended.labels(state).inc()
        if outcome.error is not None:
            facts = {"delivery_id": attempt.delivery.id, "endpoint_id": attempt.delivery.endpoint_id}
            _log.warning("alert_not_delivered", extra={**facts, "error": outcome.error, "state": state})


def _show(waiting: outbox.Waiting, *, clock: Clock) -> None:
    _pending.set(waiting.pending)
    _dead.set(waiting.dead)
    now = from_ms(clock.now_ms())
    _age.set((now - waiting.oldest_at).total_seconds() if waiting.oldest_at else 0)
