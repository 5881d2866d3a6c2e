"""Every hour: what has had its time is deleted. Facts of money and of who did what are never among it."""

from __future__ import annotations

import logging

from app.core.clock import Clock, SystemClock, from_ms
from app.identity.pruning import Pruned, prune
from app.workers.transaction import in_transaction

PRUNE = "steelyard.prune"
_log = logging.getLogger(__name__)


def prune_rows(database_url: str, *, clock: Clock | None = None) -> Pruned:
    """How many rows of each kind are gone. Raises DependencyError if the database can't be reached."""
    now = from_ms((clock or SystemClock()).now_ms())
    total = Pruned(0, 0)
    while True:
        # A transaction a batch: none of them holds many rows for long.
        gone = in_transaction(database_url, lambda connection: prune(connection, now=now))
        total = Pruned(*(sum(counts) for counts in zip(total, gone, strict=True)))
        if not any(gone):
            _log.info("pruned", extra=total._asdict())
            return total
