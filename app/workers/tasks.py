"""What the worker does, by name. Tasks take no arguments that matter: the rows say what is to be done."""

from __future__ import annotations

from celery import shared_task

from app.core.settings import settings
from app.workers.proofs import TRIAL_BALANCE, prove_books
from app.workers.pruning import PRUNE, prune_rows
from app.workers.sealing import SEAL, seal_lines


def trial_balance() -> None:
    """Prove the books. Idempotent: it only looks."""
    prove_books(settings().database_url.get_secret_value())


def prune() -> None:
    """Delete what has had its time. Idempotent: what is gone is gone."""
    prune_rows(settings().database_url.get_secret_value())


def seal() -> None:
    """Link what was posted. Idempotent: what has its link keeps it."""
    seal_lines(settings().database_url.get_secret_value())


shared_task(name=TRIAL_BALANCE)(trial_balance)
shared_task(name=PRUNE)(prune)
shared_task(name=SEAL)(seal)
