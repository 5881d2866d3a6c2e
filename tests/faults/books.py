"""What the database says: its events, and queries that find what must not be in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from tests.faults.finding import Finding, Wrong
from tests.faults.journals import Journals
from tests.faults.stack import Stack

Event = Mapping[str, Any]
"""A row of `usage_event`."""
_LATE = timedelta(minutes=1)
"""Longest time from the moment that an event says it was posted to its transaction's end."""

_ROLLUPS = """
    FROM usage_rollup r FULL JOIN (
      SELECT date_bin('15 minutes', admitted_at, 'epoch') AS bucket, tenant_id, project_id, key_id, model_id,
        price_version_id, currency, usage_source, count(*) AS requests, sum(input) AS input,
        sum(input_cached) AS input_cached, sum(output) AS output, sum(billed_output) AS billed_output,
        sum(cost) AS cost
      FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) e
    USING (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source)"""
_KEY = "bucket || ' ' || key_id || ' ' || usage_source"
_BALANCES = """
    FROM (SELECT w.id, w.credit_limit, a.limit_amount - w.credit_limit - a.spent AS allowance,
        coalesce((SELECT sum(amount) FROM wallet_move m WHERE m.wallet_id = w.id), 0) AS granted,
        coalesce((SELECT sum(cost) FROM usage_event u WHERE u.tenant_id = w.tenant_id), 0) AS cost,
        coalesce((SELECT sum(e.amount) FROM ledger_entry e JOIN ledger_account c ON c.id = e.account_id
          WHERE c.tenant_id = w.tenant_id AND c.kind = 'wallet'), 0) AS ledger
      FROM wallet w JOIN allowance a ON a.id = w.allowance_id) told"""

QUERIES = (
    (
        Wrong.DUPLICATED,
        "a settlement that contradicts another",
        "SELECT request_id, incarnation_id FROM usage_conflict",
    ),
    (
        Wrong.DUPLICATED,
        "summed up more often than there are events",
        f"SELECT {_KEY}, r.requests || ' > ' || coalesce(e.requests, 0) {_ROLLUPS} "
        "WHERE r.requests > coalesce(e.requests, 0)",
    ),
    (
        Wrong.MISSING,
        "events that no roll-up has",
        f"SELECT {_KEY}, coalesce(r.requests, 0) || ' < ' || e.requests {_ROLLUPS} "
        "WHERE e.requests > coalesce(r.requests, 0)",
    ),
    (
        Wrong.MISSING,
        "a record set aside",
        "SELECT coalesce(request_id, id::text), reason FROM parked_record",
    ),
    (
        Wrong.MISSING,
        "a charge without its transaction",
        """SELECT u.request_id, u.transaction_id FROM usage_event u
           LEFT JOIN ledger_transaction t ON t.id = u.transaction_id WHERE u.cost > 0 AND t.id IS NULL""",
    ),
    (
        Wrong.MISMATCHED_TOKENS,
        "a roll-up's tokens are not those of its events",
        f"SELECT {_KEY}, r.output || ' <> ' || e.output {_ROLLUPS} "
        "WHERE (r.input, r.input_cached, r.output, r.billed_output) <> "
        "(e.input, e.input_cached, e.output, e.billed_output)",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "a roll-up's cost is not that of its events",
        f"SELECT {_KEY}, r.cost || ' <> ' || e.cost {_ROLLUPS} WHERE r.cost <> e.cost",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "an event does not cost what its tokens cost at its version's prices",
        """SELECT u.request_id, u.cost || ' <> ' || due.picos FROM usage_event u
           CROSS JOIN LATERAL (SELECT sum(p.micros_per_mtok * CASE p.meter
               WHEN 'input' THEN u.billed_input WHEN 'input_cached' THEN u.billed_input_cached
               WHEN 'input_cache_write' THEN u.billed_input_cache_write ELSE u.billed_output END) AS picos
             FROM price p WHERE p.price_version_id = u.price_version_id AND p.model_id = u.model_id
               AND p.service_tier = 'standard' AND p.context_band = 0) due
           WHERE u.cost IS DISTINCT FROM due.picos""",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "a transaction is not the sum of its events",
        """SELECT t.id, t.picos || ' <> ' || coalesce(u.picos, 0) FROM (
             SELECT t.id, sum(e.amount) FILTER (WHERE e.amount > 0) AS picos
             FROM ledger_transaction t JOIN ledger_entry e ON e.transaction_id = t.id
             WHERE t.kind = 'usage' GROUP BY t.id) t
           LEFT JOIN (SELECT transaction_id, sum(cost) AS picos FROM usage_event GROUP BY 1) u
             ON u.transaction_id = t.id
           WHERE t.picos IS DISTINCT FROM u.picos""",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "a transaction does not sum to zero",
        """SELECT transaction_id, sum(amount)::text FROM ledger_entry
           GROUP BY transaction_id HAVING sum(amount) <> 0""",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "a wallet's balance is told in different ways (moves - costs, ledger, allowance)",
        f"""SELECT id, format('%s, %s, %s', granted - cost, ledger, allowance) {_BALANCES}
            WHERE granted - cost <> ledger OR ledger <> allowance""",
    ),
    (
        Wrong.MISMATCHED_PICOS,
        "an allowance's spending is not what leases settled",
        """SELECT a.id, a.spent || ' - ' || a.unleased FROM allowance a WHERE a.spent - a.unleased <>
           coalesce((SELECT sum(settled) FROM lease l WHERE l.allowance_id = a.id), 0)""",
    ),
    (
        Wrong.NEGATIVE_BALANCES,
        "a wallet is below its credit limit",
        f"SELECT id, ledger::text {_BALANCES} WHERE least(ledger, allowance) < -credit_limit",
    ),
    (
        Wrong.NEGATIVE_BALANCES,
        "an allowance is spent or lent beyond its limit",
        "SELECT id, quota_available(id)::text FROM allowance WHERE quota_available(id) < 0",
    ),
    (
        Wrong.NEGATIVE_BALANCES,
        "use that no lease covered",
        "SELECT allowance_id || ' ' || incarnation_id, uncovered::text FROM lease WHERE uncovered <> 0",
    ),
    (
        Wrong.HOLDS_LEFT_OPEN,
        "a closed incarnation still has a lease",
        """SELECT l.allowance_id || ' ' || i.id, (granted - settled - returned)::text
           FROM lease l JOIN incarnation i ON i.id = l.incarnation_id
           WHERE i.status = 'closed' AND granted - settled - returned <> 0""",
    ),
)
"""For each thing that must not be: its class, its words, and a query of (subject, what is so)."""


@dataclass
class Books:
    """What is written down.   events: by request id; they never change, so they are read once."""

    journals: Journals
    events: dict[str, Event] = field(default_factory=dict)
    _until: datetime | None = None

    async def read_on(self, database: asyncpg.Connection) -> None:
        """Take in what is new in the journals and the database."""
        since = "WHERE posted_at > $1" if self._until else ""
        bounds = (self._until - _LATE,) if self._until else ()
        for row in await database.fetch(f"SELECT * FROM usage_event {since}", *bounds):
            self.events[row["request_id"]] = dict(row)
            self._until = max(self._until or row["posted_at"], row["posted_at"])
        self.journals.read_on()  # after the database: what is posted there was written here before


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    """The database as its owner, one snapshot for all that is read."""
    connection = await asyncpg.connect(stack.owner_url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield connection
    finally:
        await connection.close()


async def of_database(database: asyncpg.Connection) -> AsyncIterator[Finding]:
    """What the database contradicts itself in."""
    for wrong, words, query in QUERIES:
        for subject, so in await database.fetch(query):
            yield Finding(wrong, subject, f"{words}: {so}")
