"""What the product's own proofs say at the end of a run: reconciliation, rebuilt projections, the chains.

They are asked by themselves, besides what the oracle compares on its own: none of them may find anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import from_ms
from app.insights.events import EventFilter, list_lines
from billing.chain.check import Check, Scope
from billing.ledger import rebuild
from billing.reconcile import books
from billing.reconcile.model import Pair
from tests.simulation.outcome import Outcome

if TYPE_CHECKING:
    from tests.simulation.world import World

_PAIRS = [pair for pair in Pair if pair is not Pair.ENGINE_EVENTS]
"""Engines are compared by their counters, which scripted ones don't have."""
_DAYS = text("""
SELECT DISTINCT CAST(at AT TIME ZONE 'UTC' AS date) FROM (
  SELECT admitted_at AS at FROM usage_event UNION ALL SELECT posted_at FROM usage_event
  UNION ALL SELECT at FROM usage_correction UNION ALL SELECT at FROM ledger_transaction) moments
ORDER BY 1
""")


def prove_books(world: World, outcome: Outcome) -> None:
    """Count what the proofs find."""
    arena = world.arena
    arena.read(lambda connection: _reconcile(connection, world, outcome))
    arena.read(lambda connection: _rebuild(connection, outcome))
    arena.read(lambda connection: _verify(connection, world, outcome))


async def _reconcile(connection: AsyncConnection, world: World, outcome: Outcome) -> None:
    now = from_ms(world.clock.now_ms())
    days = list((await connection.execute(_DAYS)).scalars()) or [now.date()]
    for pair in _PAIRS:
        for day in days[:1] if pair.stands else days:
            proof = await books.prove(connection, pair, day=day, now=now)
            for gap in proof.gaps:
                outcome.found("gaps", f"{pair.value} of {day}: {gap.scope} {gap.kind}: {gap.explanation}")


async def _rebuild(connection: AsyncConnection, outcome: Outcome) -> None:
    for difference in await rebuild.compare(connection):
        outcome.found("unlike_rebuilt", str(difference))


async def _verify(connection: AsyncConnection, world: World, outcome: Outcome) -> None:
    """Each tenant's whole chain, as its reader checks it; every event and correction is a line of one."""
    lines = 0
    for payer in world.catalogue.payers:
        check = Check(Scope(), zone=ZoneInfo("UTC"))
        told = await list_lines(connection, EventFilter(payer.tenant_id), after=None, limit=100_000)
        for line in told:
            check.take(line.text)
        check.finish()
        for finding in check.findings:
            outcome.found("chain_flaws", f"line {finding.line}: {finding.flaw}: {finding.what}")
        lines += check.kinds["event"] + check.kinds["correction"]
    facts = "SELECT (SELECT count(*) FROM usage_event) + (SELECT count(*) FROM usage_correction)"
    if lines != (there := (await connection.execute(text(facts))).scalar_one()):
        outcome.found("chain_flaws", f"{there} events and corrections, {lines} lines in chains")
    outcome.sealed = lines
