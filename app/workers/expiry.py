"""Every minute: grants whose time has come start, those whose time is over expire. A transaction a wallet.

Killed anywhere, doubled or late, it does each thing once: the rows say what is due.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime

from prometheus_client import Counter, Gauge
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import Clock, SystemClock, from_ms
from app.core.errors import DependencyError
from app.core.ids import WalletId
from app.workers.transaction import in_transaction
from billing.ledger import expiry
from billing.ledger.expiry import Turned

EXPIRY = "steelyard.expiry"

_started = Counter("steelyard_grants_started", "Grants that began to count in their wallet.")
_ended = Counter("steelyard_grants_ended", "Grants of which nothing remains after their end.")
_lingering = Gauge("steelyard_grants_lingering", "Expired grants whose rest is lent to running requests.")
_failures = Counter(
    "steelyard_grants_turn_failures", "Wallets whose grants could not be turned; tried again."
)
_turned_at = Gauge(
    "steelyard_grants_turned_timestamp_seconds", "Unix time at which grants were last looked at."
)
_log = logging.getLogger(__name__)


def turn_grants(database_url: str, *, clock: Clock | None = None) -> Turned:
    """What was started and expired, over all wallets. Raises DependencyError if no database is reached.

    A wallet that fails does not hold up the others: it is logged, counted and tried again next time.
    """
    now = from_ms((clock or SystemClock()).now_ms())
    due = in_transaction(database_url, lambda connection: expiry.find_due(connection, now=now))
    turns = [turn for wallet_id in due if (turn := _try_turn(database_url, wallet_id, now=now))]
    total = Turned(
        started=sum(turn.started for turn in turns),
        expired=sum(turn.expired for turn in turns),
        ended=sum(turn.ended for turn in turns),
        lingering=sum(turn.lingering for turn in turns),
    )
    _started.inc(total.started)
    _ended.inc(total.ended)
    _lingering.set(total.lingering)
    _turned_at.set(time.time())
    return total


def _try_turn(database_url: str, wallet_id: WalletId, *, now: datetime) -> Turned | None:
    async def act(connection: AsyncConnection) -> Turned:
        return await expiry.turn(connection, wallet_id, now=now)

    try:
        turned = in_transaction(database_url, act)
    except DependencyError:
        raise
    except Exception:  # noqa: BLE001 - the rim: the others have their turn, this one the next
        _failures.inc()
        _log.exception("grants_not_turned", extra={"wallet_id": wallet_id})
        return None
    if turned != Turned(lingering=turned.lingering):
        _log.info("grants_turned", extra={"wallet_id": wallet_id, "expired_picos": str(turned.expired)})
    return turned
