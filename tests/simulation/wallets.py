"""Each wallet holds what came in, less what was used, expired or charged: counted from the facts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from app.core.clock import from_ms
from tests.simulation.catalogue import Payer
from tests.simulation.evidence import Evidence
from tests.simulation.outcome import Outcome

if TYPE_CHECKING:
    from tests.simulation.world import World

_CORRECTIONS = "SELECT reference, tenant_id, amount::text FROM usage_correction"
_GRANTS = """
SELECT g.reference, g.amount::text, g.starts_at, g.expires_at,
  coalesce(sum(m.amount) FILTER (WHERE m.kind = 'started'), 0)::text AS started,
  coalesce(-sum(m.amount) FILTER (WHERE m.kind = 'expired'), 0)::text AS expired,
  count(*) FILTER (WHERE m.kind = 'started') AS starts, count(*) FILTER (WHERE m.kind = 'ended') AS ends,
  count(*) FILTER (WHERE m.at < g.starts_at
    OR m.at < g.expires_at AND m.kind IN ('expired', 'ended')) AS early
FROM wallet_grant g LEFT JOIN wallet_move m ON m.grant_id = g.id WHERE g.wallet_id = $1 GROUP BY g.id
"""


def judge_wallets(world: World, evidence: Evidence, outcome: Outcome) -> None:
    """What the ledger says of each wallet, against grants, corrections and events."""
    corrected = _judge_corrections(world, outcome)
    for payer in world.catalogue.payers:
        balance = _ledger_balance(world, payer.tenant_id)
        cost = sum(
            int(event["cost"]) for event in evidence.events.values() if event["tenant_id"] == payer.tenant_id
        )
        brought = _judge_grants(world, payer, outcome) + corrected[payer.tenant_id]
        if balance != brought - cost:
            outcome.found("mismatched_picos", f"a wallet holds {balance}: it got {brought}, used {cost}")
        if balance < -payer.most_credit:
            outcome.found("negative_balances", f"a wallet holds {balance}, its credit is {payer.most_credit}")


def _judge_grants(world: World, payer: Payer, outcome: Outcome) -> int:
    """What grants brought into a wallet; each grant is there once, started and ended at its time."""
    brought = 0
    now = from_ms(world.worker.idle_ms or 0)
    clock_was_set = any(trouble.what == "clock_jump" for trouble in world.plan.troubles)
    rows = world.arena.fetch(_GRANTS, payer.wallet_id)
    if {row["reference"]: int(row["amount"]) for row in rows} != payer.granted:
        outcome.found("mismatched_picos", f"granted were {payer.granted}, there are {len(rows)}")
    for row in rows:
        started, expired = int(row["started"]), int(row["expired"])
        brought += started - expired
        has_ended = row["expires_at"] is not None and row["expires_at"] <= now
        as_due = (row["starts"], row["ends"]) == (row["starts_at"] <= now, has_ended)
        outcome.expired += row["ends"]
        if row["early"] or not (as_due or clock_was_set):
            outcome.found("mismatched_picos", f"a grant at another time than its own: {dict(row)}")
        if started not in (0, int(row["amount"])) or not 0 <= expired <= started:
            outcome.found("mismatched_picos", f"a grant brought {started}, {expired} expired: {dict(row)}")
    return brought


def _judge_corrections(world: World, outcome: Outcome) -> Counter[str]:
    """What corrections gave back, by tenant; each that was made is there once."""
    back: Counter[str] = Counter()
    made: dict[str, int] = {}
    for reference, tenant_id, amount in world.arena.fetch(_CORRECTIONS):
        made[reference] = int(amount)
        back[tenant_id] += int(amount)
    if made != world.catalogue.corrected:
        outcome.found("mismatched_picos", f"corrected were {world.catalogue.corrected}, there are {made}")
    outcome.corrected = len(made)
    return back


def _ledger_balance(world: World, tenant_id: str) -> int:
    query = """SELECT coalesce(sum(e.amount), 0)::text FROM ledger_entry e JOIN ledger_account a
      ON a.id = e.account_id WHERE a.tenant_id = $1 AND a.kind = 'wallet'"""
    return int(world.arena.fetch(query, tenant_id)[0][0])
