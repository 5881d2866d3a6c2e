"""Reconciles a day: proves each pair of books, compares each engine with its events, keeps what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import Clock, from_ms
from billing.reconcile import books, engines, repository
from billing.reconcile.days import bounds
from billing.reconcile.model import Engine, EngineDay, Pair, Proof

CLOCK_SLACK = timedelta(seconds=8)
"""How long an engine may take to tell its counters, and by how much the clocks of machines may differ."""
_LOST = text("""
SELECT count(*) FROM usage_event
WHERE outcome = 'lost' AND admitted_at >= :begins AND admitted_at < :ends
""")


@dataclass(frozen=True, slots=True)
class Terms:
    """How engines are compared.   lag, slack: as `engines.compare` says."""

    lag: timedelta
    slack: timedelta = CLOCK_SLACK


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was found of one day.   lost: requests whose process died before their end."""

    day: date
    proofs: Sequence[Proof]
    engines: Sequence[EngineDay]
    lost: int

    @property
    def unexplained(self) -> int:
        """Tokens of all engines that nothing explains, whatever their sign."""
        return sum(abs(each.unexplained or 0) for each in self.engines)


async def reconcile(
    connection: AsyncConnection,
    day: date,
    *,
    pairs: Sequence[Pair] = tuple(Pair),
    fleet: Sequence[Engine],
    terms: Terms,
    clock: Clock,
) -> Reconciled:
    """Prove the pairs as of a UTC day and keep what was found, within the caller's transaction. Idempotent.

    fleet: the backends, removed ones too. Each pair is one query, so it sees one state of the books.
    """
    now = from_ms(clock.now_ms())
    timed: list[tuple[Proof, int]] = []
    compared: list[EngineDay] = []
    for pair in pairs:
        began = clock.monotonic()
        if pair is Pair.ENGINE_EVENTS:
            compared = await engines.compare(
                connection, day, engines=fleet, now=now, lag=terms.lag, slack=terms.slack
            )
            seen = sum(each.readings + each.requests for each in compared)
            proof = Proof(pair, day, engines.gaps(compared), seen)
        else:
            proof = await books.prove(connection, pair, day=day, now=now)
        timed.append((proof, round((clock.monotonic() - began) * 1000)))
    begins, ends = bounds(day)
    lost = (await connection.execute(_LOST, {"begins": begins, "ends": ends})).scalar_one()
    # What is kept is locked only now: a long look at a long day keeps nobody waiting.
    await repository.lock(connection)
    await repository.keep_days(connection, compared, now=now)
    for proof, took_ms in timed:
        await repository.keep_proof(connection, proof, now=now, took_ms=took_ms)
    return Reconciled(day, [proof for proof, _ in timed], compared, int(lost))
