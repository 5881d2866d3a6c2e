"""What is found is kept: proofs, days until they are final, gaps from first to last, readings for a while."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.core.clock import ManualClock, from_ms
from billing.metering.model import Outcome, UsageSource
from billing.reconcile import repository
from billing.reconcile.days import day_of
from billing.reconcile.model import Gap, Pair, Proof, Unit
from billing.reconcile.service import Reconciled, Terms, reconcile
from tests.billing.journal.shop import Shop
from tests.billing.reconcile.fleet import TODAY, Fleet, at
from tests.billing.reconcile.posted import force, post_some

TERMS = Terms(lag=timedelta(0), slack=timedelta(seconds=2))
HOUR_S = 3600


@pytest.fixture
async def fleet(shop: Shop) -> Fleet:
    opened = Fleet(shop)
    await opened.add()
    return opened


async def reconciled(fleet: Fleet, *, clock: ManualClock, day: date = TODAY) -> Reconciled:
    async with fleet.shop.engine.begin() as connection:
        return await reconcile(connection, day, fleet=fleet.engines, terms=TERMS, clock=clock)


def clock_at(minute: float) -> ManualClock:
    return ManualClock(round(at(minute).timestamp() * 1000))


async def test_every_pair_is_proven_and_what_was_read_is_told(fleet: Fleet) -> None:
    await post_some(fleet.shop, 3)
    found = await reconciled(fleet, clock=ManualClock(fleet.shop.clock.now_ms()))
    assert [proof.pair for proof in found.proofs] == list(Pair)
    scanned = {proof.pair: proof.scanned for proof in found.proofs}
    assert scanned[Pair.EVENTS_ROLLUPS] == scanned[Pair.EVENTS_LEDGER] == 3
    assert scanned[Pair.DOUBLE_ENTRY] == 2
    assert not any(proof.gaps for proof in found.proofs)
    rows = await fleet.shop.rows("SELECT pair, day, gaps FROM reconcile_proof")
    assert {row[0] for row in rows} == {pair.value for pair in Pair}
    assert {row[1] for row in rows} == {None, TODAY}


async def test_lost_requests_of_the_day_are_counted(fleet: Fleet) -> None:
    await fleet.serve(10, outcome=Outcome.LOST, source=UsageSource.UNKNOWN, backend_id=None)
    assert (await reconciled(fleet, clock=clock_at(60))).lost == 1
    assert (await reconciled(fleet, clock=clock_at(60), day=TODAY - timedelta(days=1))).lost == 0


async def test_a_gap_is_kept_from_its_first_sight_to_its_end(fleet: Fleet) -> None:
    await post_some(fleet.shop)
    await force(fleet.shop, "UPDATE usage_rollup SET output = output + 1")
    clock = ManualClock(fleet.shop.clock.now_ms())
    kept = """SELECT first_seen_at, last_seen_at, resolved_at, left_value, right_value
        FROM reconcile_gap ORDER BY id"""
    await reconciled(fleet, clock=clock)
    first = from_ms(clock.now_ms())
    assert await fleet.shop.rows(kept) == [(first, first, None, 270, 271)]
    clock.advance(60)
    await force(fleet.shop, "UPDATE usage_rollup SET output = output + 1")
    await reconciled(fleet, clock=clock)
    second = from_ms(clock.now_ms())
    assert await fleet.shop.rows(kept) == [(first, second, None, 270, 272)]
    clock.advance(60)
    await force(fleet.shop, "UPDATE usage_rollup SET output = output - 2")
    await reconciled(fleet, clock=clock)
    assert await fleet.shop.rows(kept) == [(first, second, from_ms(clock.now_ms()), 270, 272)]
    clock.advance(60)
    await force(fleet.shop, "UPDATE usage_rollup SET output = output + 5")
    await reconciled(fleet, clock=clock)
    assert len(await fleet.shop.rows(kept)) == 2


async def test_a_proof_that_tells_not_all_its_gaps_resolves_none(fleet: Fleet) -> None:
    async def kept(number: int, *, second: int) -> int:
        gaps = [
            Gap(
                pair=Pair.CONFLICTS,
                scope=f"req_{each}",
                unit=Unit.RECORDS,
                kind="conflict",
                left=2,
                right=1,
                explanation="",
            )
            for each in range(number, number + 2)
        ]
        proof = Proof(Pair.CONFLICTS, TODAY, gaps, 2, is_cut=number == 1)
        async with fleet.shop.engine.begin() as connection:
            await repository.keep_proof(connection, proof, now=at(second), took_ms=1)
        return len(await fleet.shop.rows("SELECT id FROM reconcile_gap WHERE resolved_at IS NULL"))

    assert [await kept(0, second=1), await kept(1, second=2), await kept(2, second=3)] == [2, 3, 2]


async def test_another_days_gap_stays_while_this_day_is_well(fleet: Fleet) -> None:
    await post_some(fleet.shop)
    await force(fleet.shop, "UPDATE usage_rollup SET output = output + 1")
    clock = ManualClock(fleet.shop.clock.now_ms())
    await reconciled(fleet, clock=clock)
    clock.advance(60)
    await reconciled(fleet, clock=clock, day=TODAY - timedelta(days=1))
    assert await fleet.shop.rows("SELECT resolved_at FROM reconcile_gap") == [None]


async def test_an_engines_day_is_told_anew_until_it_is_final_and_then_stands(fleet: Fleet) -> None:
    await fleet.read(1, prompt=0, generated=0)
    await fleet.read(60, prompt=0, generated=5)
    kept = "SELECT unexplained, state, is_final FROM engine_day WHERE meter = 'generated'"
    found = await reconciled(fleet, clock=clock_at(70))
    assert found.unexplained == 5
    assert await fleet.shop.rows(kept) == [(5, "unattributed", False)]
    await fleet.read(80, prompt=0, generated=8)
    await reconciled(fleet, clock=clock_at(1440 + 400))
    assert await fleet.shop.rows(kept) == [(8, "unattributed", True)]
    await fleet.read(90, prompt=0, generated=9)
    await reconciled(fleet, clock=clock_at(1440 + 500))
    assert await fleet.shop.rows(kept) == [(8, "unattributed", True)]
    for statement in (
        "UPDATE engine_day SET unexplained = 0",
        "DELETE FROM engine_day",
        "TRUNCATE engine_day",
    ):
        await _refused(fleet.shop, statement)


async def test_readings_go_once_they_are_old_and_their_day_is_final(fleet: Fleet) -> None:
    for minute in (1, 60):
        await fleet.read(minute, prompt=0, generated=0)
    later, kept = at(0) + timedelta(days=30), timedelta(days=14)
    for statement in ("UPDATE engine_reading SET prompt = 7", "DELETE FROM engine_reading"):
        await _refused(fleet.shop, statement)
    async with fleet.shop.engine.begin() as connection:
        assert await repository.prune_readings(connection, now=later, keep=kept) == 0
    await reconciled(fleet, clock=clock_at(1440 + 400))
    async with fleet.shop.engine.begin() as connection:
        assert await repository.prune_readings(connection, now=at(1440 * 13), keep=kept) == 0
        assert await repository.prune_readings(connection, now=later, keep=kept) == 2
    assert await fleet.shop.rows("SELECT count(*) FROM engine_reading") == [0]
    await _refused(fleet.shop, "TRUNCATE engine_reading")


async def test_the_day_that_was_proven_longest_ago_comes_next(fleet: Fleet) -> None:
    today = TODAY + timedelta(days=2)

    async def stalest() -> date | None:
        async with fleet.shop.engine.begin() as connection:
            return await repository.stalest_day(connection, before=today)

    assert await stalest() is None
    await post_some(fleet.shop)
    clock = clock_at(1440 * 2)
    proven = []
    for _ in range(4):
        day = await stalest()
        assert day is not None
        proven.append((day - TODAY).days)
        await reconciled(fleet, clock=clock, day=day)
        clock.advance(HOUR_S)
    assert proven == [0, 1, 0, 1]
    assert day_of(from_ms(clock.now_ms())) >= today


async def _refused(shop: Shop, statement: str) -> None:
    async with shop.owner.connect() as connection:
        with pytest.raises(DBAPIError, match="history stands"):
            await connection.execute(text(statement))
