"""Every few seconds: what was posted gets its link in its tenant's chain.

The settler doesn't wait for it, and a tenant sees a line once it has its link.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter, Gauge

from app.core.clock import Clock, SystemClock, from_ms
from app.workers.transaction import in_transaction
from billing.chain.sealing import seal, waiting_since

SEAL = "steelyard.seal"
_sealed = Counter("steelyard_chain_sealed_total", "Lines that got their link.")
_lag = Gauge("steelyard_chain_lag_seconds", "Age of the oldest posted line that has no link.")


def seal_lines(database_url: str, *, clock: Clock | None = None, most: int = 5000) -> int:
    """How many lines got their link; nothing of what was posted before the call is left without one.

    A transaction for each step of about `most` lines. Does nothing while another sealer is at work.
    Raises DependencyError if the database can't be reached.
    """
    clock = clock or SystemClock()
    links, more = 0, True
    try:
        while more:
            step = in_transaction(database_url, partial(seal, now=from_ms(clock.now_ms()), most=most))
            more = step is not None and step.more
            links += step.links if step else 0
            _sealed.inc(step.links if step else 0)
            if more:
                _tell_lag(database_url, clock=clock)
    finally:  # a sealer that fails must not look like one that has nothing to do
        _tell_lag(database_url, clock=clock)
    return links


def _tell_lag(database_url: str, *, clock: Clock) -> None:
    since = in_transaction(database_url, waiting_since)
    age_s = (from_ms(clock.now_ms()) - since).total_seconds() if since else 0
    _lag.set(max(age_s, 0))
