"""Every minute the books are proven: each currency sums to zero, each wallet tells one balance.

A minute's proof looks at what is new, a day's at everything (`billing.ledger.proofs`). A failed proof is
logged with its numbers and shown as a metric; nothing is corrected here.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Any

from prometheus_client import Gauge
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.workers.transaction import in_transaction
from billing.ledger import proofs

TRIAL_BALANCE = "steelyard.trial_balance"

_unbalanced = Gauge("steelyard_ledger_unbalanced_currencies", "Currencies whose entries do not sum to zero.")
_drifting = Gauge("steelyard_ledger_drifting_wallets", "Wallets whose balance differs by the way it is told.")
_proven_at = Gauge(
    "steelyard_ledger_proven_timestamp_seconds", "Unix time at which the books were last looked at."
)
_log = logging.getLogger(__name__)
_last: dict[str, Any] = {}


def last_proof() -> dict[str, Any]:
    """What the last proof found; empty before the first."""
    return dict(_last)


async def prove(connection: AsyncConnection, *, now: datetime | None = None) -> dict[str, Any]:
    """What the books say: `{"unbalanced": [currency…], "drifting": [wallet id…]}`, both empty if well.

    now: None is the database's time.
    """
    at = now or (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    proof = await proofs.prove(connection, now=at)
    for currency, picos in proof.unbalanced.items():
        _log.error("ledger_unbalanced", extra={"currency": currency, "picos": str(picos)})
    for drift in proof.drifts:
        _log.error("wallet_drifts", extra={"drift": str(drift)})
    return {"unbalanced": sorted(proof.unbalanced), "drifting": [drift.wallet_id for drift in proof.drifts]}


def prove_books(database_url: str) -> dict[str, Any]:
    """Prove the books of a database and set the metrics. Raises DependencyError if it can't be reached."""
    found = in_transaction(database_url, prove)
    _unbalanced.set(len(found["unbalanced"]))
    _drifting.set(len(found["drifting"]))
    _proven_at.set(time.time())
    _last.update(found)
    return found
