"""Every hour, and when a worker begins: today, yesterday and the day proven longest ago are reconciled.

So a day is looked at while it is young, and all the past again and again, a day at a time: what is read in an
hour does not grow with the history. What is found is kept and shown; nothing is corrected here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import date, timedelta

from prometheus_client import Gauge
from sqlalchemy.ext.asyncio import AsyncConnection

from app.catalog.engines import list_engines
from app.core.clock import Clock, SystemClock, from_ms
from app.core.settings import Settings
from app.workers.transaction import in_transaction
from billing.reconcile.days import day_of
from billing.reconcile.model import Pair, Proof
from billing.reconcile.repository import open_counts, prune_readings, stalest_day
from billing.reconcile.service import Reconciled, Terms, reconcile

RECONCILE = "steelyard.reconcile"

_gaps = Gauge("steelyard_reconcile_gaps", "Gaps between two books that stand unacknowledged.", ("pair",))
_unexplained = Gauge(
    "steelyard_reconcile_unexplained_tokens",
    "Tokens of today and yesterday in which an engine's counters and its events differ without explanation.",
)
_lost = Gauge(
    "steelyard_reconcile_lost_requests",
    "Requests of today and yesterday whose gateway died before their end.",
)
_at = Gauge("steelyard_reconcile_timestamp_seconds", "Unix time of the last reconciliation.")
_log = logging.getLogger(__name__)


def reconcile_days(
    database_url: str, *, settings: Settings, clock: Clock | None = None
) -> Sequence[Reconciled]:
    """What was found, day by day. Raises DependencyError if the database can't be reached."""
    clock = clock or SystemClock()
    now = from_ms(clock.now_ms())
    today = day_of(now)
    young = [today - timedelta(days=1), today]
    stale = in_transaction(database_url, lambda connection: stalest_day(connection, before=young[0]))
    found = [
        _reconcile_day(database_url, day, settings=settings, clock=clock)
        for day in ([] if stale is None else [stale]) + young
    ]
    _show(found[-2:], in_transaction(database_url, open_counts))
    _at.set(now.timestamp())
    keep = timedelta(days=settings.engine_reading_days)
    while in_transaction(database_url, lambda connection: prune_readings(connection, now=now, keep=keep)):
        pass
    return found


def _reconcile_day(database_url: str, day: date, *, settings: Settings, clock: Clock) -> Reconciled:
    """One day in one transaction."""
    terms = Terms(lag=timedelta(seconds=settings.reconcile_lag_s))

    async def act(connection: AsyncConnection) -> Reconciled:
        fleet = await list_engines(connection, removed=True)
        return await reconcile(connection, day, fleet=fleet, terms=terms, clock=clock)

    found = in_transaction(database_url, act)
    for proof in found.proofs:
        _tell(proof)
    return found


def _tell(proof: Proof) -> None:
    for gap in proof.gaps:
        facts = {
            "pair": gap.pair.value,
            "day": str(proof.day),
            "scope": gap.scope,
            "kind": gap.kind,
            "unit": gap.unit.value,
            "difference": str(gap.difference),
            "explanation": gap.explanation,
        }
        _log.error("books_differ", extra=facts)


def _show(young: Sequence[Reconciled], standing: dict[str, int]) -> None:
    for pair in Pair:
        _gaps.labels(pair.value).set(standing.get(pair.value, 0))
    _unexplained.set(sum(day.unexplained for day in young))
    _lost.set(sum(day.lost for day in young))
