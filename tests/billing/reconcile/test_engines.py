"""An engine's day is compared with its events: exactly where it can be, and each doubt by its name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from billing.journal import parking
from billing.metering.model import Outcome, UsageSource
from billing.reconcile.engines import gaps
from billing.reconcile.model import DayState, EngineMeter
from tests.billing.journal.shop import Shop
from tests.billing.reconcile.fleet import TODAY, Fleet, at, kinds

PROMPT, GENERATED = EngineMeter.PROMPT, EngineMeter.GENERATED


@pytest.fixture
async def fleet(shop: Shop) -> Fleet:
    """One backend that was read at minute 1 as 1000 and 500."""
    opened = Fleet(shop)
    await opened.add()
    await opened.read(1, prompt=1000, generated=500)
    return opened


async def test_what_an_engine_did_and_what_is_recorded_agree_to_the_token(fleet: Fleet) -> None:
    for minute in (10, 20, 30):
        await fleet.serve(minute)
    await fleet.read(60, prompt=1300, generated=530)
    prompt, generated = await fleet.one(PROMPT), await fleet.one(GENERATED)
    assert (prompt.counted, prompt.recorded, prompt.billed, prompt.unexplained) == (300, 300, 300, 0)
    assert (generated.counted, generated.recorded, generated.unexplained) == (30, 30, 0)
    assert (prompt.state, prompt.requests, kinds(prompt)) == (DayState.RECONCILED, 3, {"counted": 3})
    assert (prompt.begins_at, prompt.ends_at, prompt.readings) == (at(1), at(60), 2)


async def test_a_prompt_with_several_answers_is_counted_by_the_engine_once_for_each(fleet: Fleet) -> None:
    await fleet.serve(10, choices=3, output=30)
    await fleet.read(60, prompt=1300, generated=530)
    day = await fleet.one(PROMPT)
    assert (day.counted, day.recorded, day.billed, day.unexplained) == (300, 300, 100, 0)
    assert kinds(day) == {"several_choices": 1}


async def test_tokens_that_bypass_the_gateway_are_a_gap(fleet: Fleet) -> None:
    await fleet.serve(10)
    await fleet.read(60, prompt=1107, generated=512)
    day = await fleet.one(GENERATED)
    assert (day.state, day.unexplained) == (DayState.UNATTRIBUTED, 2)
    (gap,) = gaps([day])
    assert (gap.kind, gap.scope, gap.difference) == ("unattributed", "bck_one generated", 2)
    assert gap.explanation == "the engine counted 2 tokens that no request through the gateway explains"


async def test_tokens_that_the_engine_never_made_are_a_gap(fleet: Fleet) -> None:
    await fleet.serve(10)
    await fleet.read(60, prompt=1100, generated=503)
    day = await fleet.one(GENERATED)
    assert (day.state, day.unexplained) == (DayState.MISSING_AT_ENGINE, -7)
    (gap,) = gaps([day])
    assert gap.explanation == "the events hold 7 tokens that the engine did not count"


async def test_a_cut_answer_explains_its_tail(fleet: Fleet) -> None:
    await fleet.serve(10, outcome=Outcome.CLIENT_CANCELLED, source=UsageSource.ENGINE_PARTIAL)
    await fleet.read(60, prompt=1100, generated=513)
    day = await fleet.one(GENERATED)
    assert (day.counted, day.recorded, day.unexplained, kinds(day)) == (13, 10, 0, {"cut": 1})


async def test_unknown_usage_is_explained_up_to_its_bound_and_not_beyond(fleet: Fleet) -> None:
    await fleet.serve(10, outcome=Outcome.CLIENT_CANCELLED, source=UsageSource.UNKNOWN)
    await fleet.read(60, prompt=1100, generated=600)
    assert (await fleet.one(GENERATED)).unexplained == 0
    assert (await fleet.one(PROMPT)).unexplained == 0
    await fleet.read(61, prompt=2001, generated=600)
    day = await fleet.one(PROMPT)
    assert (day.unexplained, kinds(day)) == (1, {"unknown_usage": 1})


async def test_what_our_side_broke_is_recorded_and_not_billed(fleet: Fleet) -> None:
    await fleet.serve(10, outcome=Outcome.ENGINE_FAILED)
    await fleet.read(60, prompt=1100, generated=510)
    day = await fleet.one(PROMPT)
    assert (day.recorded, day.billed, day.unexplained, kinds(day)) == (100, 0, 0, {"not_billed": 1})


async def test_a_restart_in_the_middle_hides_what_ran_just_before_and_nothing_else(fleet: Fleet) -> None:
    await fleet.serve(10)
    await fleet.read(20, prompt=1100, generated=510, process="a")
    await fleet.serve(20.5)
    await fleet.read(21, prompt=0, generated=0, process="b")
    await fleet.serve(30)
    await fleet.read(40, prompt=100, generated=10, process="b")
    day = await fleet.one(GENERATED)
    assert (day.restarts, day.counted, day.recorded, day.unexplained) == (1, 20, 30, 0)
    assert kinds(day) == {"counted": 2, "engine_restarted": 1}
    await fleet.read(41, prompt=110, generated=40, process="b")
    assert (await fleet.one(GENERATED)).unexplained == 20


async def test_what_runs_at_the_edges_may_be_counted_in_part(fleet: Fleet) -> None:
    await fleet.serve(0.5, seconds=120)
    await fleet.serve(59.5, seconds=120)
    await fleet.serve(0.2, seconds=1)
    await fleet.serve(70)
    await fleet.read(60, prompt=1130, generated=504)
    day = await fleet.one(GENERATED)
    assert (day.counted, day.unexplained, kinds(day)) == (4, 0, {"window_edge": 2})


async def test_an_attempt_at_another_backend_explains_what_that_one_did(fleet: Fleet) -> None:
    await fleet.add("bck_two")
    await fleet.read(1, prompt=0, generated=0, backend="bck_two")
    tried = [
        {"backend_id": "bck_two", "outcome": "broken"},
        {"backend_id": "bck_one", "outcome": "delivered"},
    ]
    refused = [{"backend_id": "bck_two", "outcome": "overloaded"}, *tried[1:]]
    await fleet.serve(10, attempts=tuple(tried))
    await fleet.serve(20, attempts=tuple(refused))
    await fleet.read(60, prompt=1200, generated=520)
    await fleet.read(60, prompt=100, generated=3, backend="bck_two")
    days = await fleet.compare()
    assert {day.unexplained for day in days.values()} == {0}
    other = days["bck_two", PROMPT]
    assert (other.recorded, other.requests, kinds(other)) == (0, 0, {"other_attempt": 1})


async def test_a_lost_request_that_nobody_placed_may_be_on_any_backend_of_its_deployment(
    fleet: Fleet,
) -> None:
    lost = {"outcome": Outcome.LOST, "source": UsageSource.UNKNOWN, "backend_id": None, "attempts": ()}
    await fleet.serve(10, **lost)
    await fleet.read(60, prompt=1100, generated=507)
    day = await fleet.one(GENERATED)
    assert (day.unexplained, day.lost, kinds(day)) == (0, 1, {"backend_unknown": 1})


@pytest.mark.parametrize("dismissed", [False, True])
async def test_what_was_parked_or_dismissed_explains_what_the_engine_did_for_it(
    fleet: Fleet, dismissed: bool
) -> None:
    await fleet.serve(10, parked=True)
    if dismissed:
        async with fleet.shop.engine.begin() as connection:
            (number,) = await fleet.shop.rows("SELECT id FROM parked_record")
            await parking.dismiss(connection, number, by="mem_one", because="a test", now=at(20))
    await fleet.read(60, prompt=1100, generated=510)
    days = await fleet.compare()
    assert {day.unexplained for day in days.values()} == {0}
    assert kinds(days["bck_one", GENERATED]) == {"set_aside": 1}
    assert days["bck_one", GENERATED].requests == 0
    await fleet.read(61, prompt=1100, generated=511)
    assert (await fleet.one(GENERATED)).unexplained == 1


async def test_what_was_parked_and_posted_since_counts_once(fleet: Fleet) -> None:
    await fleet.serve(10, parked=True)
    async with fleet.shop.engine.begin() as connection:
        (number,) = await fleet.shop.rows("SELECT id FROM parked_record")
        await parking.retry(connection, number, now=at(20))
    await fleet.read(60, prompt=1100, generated=510)
    assert kinds(await fleet.one(GENERATED)) == {"counted": 1}


async def test_an_engine_that_does_not_tell_is_unknown_and_no_gap(shop: Shop) -> None:
    fleet = Fleet(shop)
    await fleet.add(engine="openai")
    assert await fleet.compare() == {}
    await fleet.serve(10)
    day = await fleet.one(GENERATED)
    assert (day.state, day.counted, day.unexplained, day.recorded) == (DayState.UNKNOWN, None, None, 10)
    assert gaps([day]) == []


async def test_readings_younger_than_the_lag_wait(fleet: Fleet) -> None:
    await fleet.serve(10)
    await fleet.read(30, prompt=1100, generated=510)
    await fleet.read(60, prompt=1100, generated=555)
    now, lag = at(65), timedelta(minutes=20)
    assert (await fleet.one(GENERATED, now=now, lag=lag)).unexplained == 0
    assert (await fleet.one(GENERATED, now=now, lag=timedelta(0))).unexplained == 45


async def test_a_day_begins_where_the_last_one_ended(fleet: Fleet) -> None:
    await fleet.serve(1439)
    await fleet.read(1438, prompt=1000, generated=500)
    tomorrow = TODAY + timedelta(days=1)
    await fleet.read(1, prompt=1100, generated=510, day=tomorrow)
    assert (await fleet.one(GENERATED)).counted == 0
    day = await fleet.one(GENERATED, day=tomorrow)
    assert (day.counted, day.unexplained, day.begins_at) == (10, 0, at(1438))


async def test_a_day_is_final_once_nothing_can_come_late(fleet: Fleet) -> None:
    await fleet.read(60, prompt=1000, generated=500)
    assert not (await fleet.one(GENERATED, now=at(1440 + 359))).is_final
    assert (await fleet.one(GENERATED, now=at(1440 + 360))).is_final
