"""Reconciles a day: proves each pair of books, compares each engine with its events, keeps what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.clock import Clock, from_ms
from billing.reconcile import books, engines, repository
from billing.reconcile.model import Engine, EngineDay, Pair, Proof

CLOCK_SLACK = timedelta(seconds=2)
"""By how much the clocks of gateways and workers may differ."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How engines are compared.   lag, slack: as `engines.compare` says."""

    lag: timedelta
    slack: timedelta = CLOCK_SLACK


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was found of one day."""

    day: date
    proofs: Sequence[Proof]
    engines: Sequence[EngineDay]

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
    """Prove the pairs as of a UTC day and keep the result, within the caller's transaction. Idempotent.

    fleet: the backends, removed ones too. Best in a transaction of one snapshot (repeatable read), if more
    than one pair is proven: each pair by itself is one query.
    """
    now = from_ms(clock.now_ms())
    proofs: list[Proof] = []
    compared: list[EngineDay] = []
    for pair in pairs:
        began = clock.monotonic()
        if pair is Pair.ENGINE_EVENTS:
            compared = await engines.compare(
                connection, day, engines=fleet, now=now, lag=terms.lag, slack=terms.slack
            )
            await repository.keep_days(connection, compared, now=now)
            seen = sum(each.readings + each.requests for each in compared)
            proof = Proof(pair, day, engines.gaps(compared), seen)
        else:
            proof = await books.prove(connection, pair, day=day)
        await _keep(connection, proof, now=now, took_s=clock.monotonic() - began)
        proofs.append(proof)
    return Reconciled(day, proofs, compared)


async def _keep(connection: AsyncConnection, proof: Proof, *, now: datetime, took_s: float) -> None:
    await repository.keep_proof(connection, proof, now=now, took_ms=round(took_s * 1000))
