"""What the worker does, by name. Tasks take no arguments that matter: the rows say what is to be done."""

from __future__ import annotations

from celery import shared_task

from app.core.settings import settings
from app.workers.alerts import LOOK_OVER_ALERTS, RAISE_ALERTS, look_over_alerts, raise_alerts
from app.workers.deliveries import DELIVER_ALERTS, deliver_alerts
from app.workers.engine_counters import READ_ENGINES, read_engines
from app.workers.expiry import EXPIRY, turn_grants
from app.workers.proofs import TRIAL_BALANCE, prove_books
from app.workers.pruning import PRUNE, prune_rows
from app.workers.reconcile import RECONCILE, reconcile_days
from app.workers.sealing import SEAL, seal_lines


def trial_balance() -> None:
    """Prove the books. Idempotent: it only looks."""
    prove_books(settings().database_url.get_secret_value())


def prune() -> None:
    """Delete what has had its time. Idempotent: what is gone is gone."""
    prune_rows(settings().database_url.get_secret_value())


def expire() -> None:
    """Start and expire grants whose time has come. Idempotent: what is done is not due."""
    turn_grants(settings().database_url.get_secret_value())


def seal() -> None:
    """Link what was posted. Idempotent: what has its link keeps it."""
    seal_lines(settings().database_url.get_secret_value())


def read_engines_counters() -> None:
    """Keep what each engine has counted so far. Idempotent: another reading is one more row."""
    read_engines(settings().database_url.get_secret_value())


def reconcile() -> None:
    """Compare the books with one another and the engines with their events. Idempotent: it only looks."""
    reconcile_days(settings().database_url.get_secret_value(), settings=settings())


def raise_due_alerts() -> None:
    """Raise the alerts that are due. Idempotent: what was told is not told again."""
    raise_alerts(settings().database_url.get_secret_value())


def look_over_all_alerts() -> None:
    """Raise the alerts of what changed without a mark. Idempotent: what was told is not told again."""
    look_over_alerts(settings().database_url.get_secret_value())


def deliver_waiting_alerts() -> None:
    """Send what waits in the outbox of alerts. Safe to repeat: a delivery is claimed before it is sent."""
    deliver_alerts(settings().database_url.get_secret_value(), settings=settings())


shared_task(name=TRIAL_BALANCE)(trial_balance)
shared_task(name=PRUNE)(prune)
shared_task(name=EXPIRY)(expire)
shared_task(name=SEAL)(seal)
shared_task(name=READ_ENGINES)(read_engines_counters)
shared_task(name=RECONCILE)(reconcile)
shared_task(name=RAISE_ALERTS)(raise_due_alerts)
shared_task(name=LOOK_OVER_ALERTS)(look_over_all_alerts)
shared_task(name=DELIVER_ALERTS)(deliver_waiting_alerts)
