"""The authority's moves on real PostgreSQL, one session at a time."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy.exc import IntegrityError

from app.core.ids import AllowanceId, IncarnationId, allowance_id, incarnation_id
from billing.quota.authority import AllowanceUnknown
from billing.quota.model import Answer, LeaseReport, Need, Sync
from billing.quota.wire import Wire
from tests.billing.quota.desk import Desk

HUGE = 10**30 + 7


def asking(sequence: int, allowance: AllowanceId, amount: int) -> Sync:
    return Sync(sequence, (), ((Need(allowance, amount),),))


def report(sequence: int, allowance: AllowanceId, *, returned: int = 0, want: int = 0) -> Sync:
    return Sync(sequence, (LeaseReport(allowance, returned, want),), ())


async def borrowed(desk: Desk, amount: int, *, limit: int) -> tuple[AllowanceId, IncarnationId]:
    """An allowance and an incarnation that has borrowed `amount` of it with its first message."""
    allowance, incarnation = await desk.allowance(limit), await desk.incarnation()
    answer = await desk.sync(incarnation, asking(1, allowance, amount))
    assert answer.asks == ((),)
    return allowance, incarnation


async def test_a_need_is_granted_whole_and_named_in_the_answer(desk: Desk) -> None:
    allowance, incarnation = await desk.allowance(HUGE), await desk.incarnation()
    answer = await desk.sync(incarnation, asking(1, allowance, HUGE - 5))
    state = answer.leases[0]
    assert (answer.sequence, answer.asks, answer.closed) == (1, ((),), False)
    assert (state.granted, state.limit, state.spent, state.available) == (HUGE - 5, HUGE, 0, 5)
    assert (await desk.status(allowance)).outstanding == HUGE - 5


async def test_a_need_above_what_is_available_is_denied_and_starts_a_recall(desk: Desk) -> None:
    allowance, _ = await borrowed(desk, 3, limit=5)
    incarnation = await desk.incarnation()
    answer = await desk.sync(incarnation, asking(1, allowance, 5))
    assert answer.asks == ((allowance,),)
    assert answer.leases[0].granted == 0
    assert 0 < answer.leases[0].recall_ms <= 1000


async def test_a_need_above_what_is_not_spent_is_denied_and_recalls_nothing(desk: Desk) -> None:
    allowance, holder = await borrowed(desk, 3, limit=5)
    await desk.post(holder, (allowance, 1, 1))
    answer = await desk.sync(await desk.incarnation(), asking(1, allowance, 5))
    assert (answer.asks, answer.leases[0].recall_ms) == (((allowance,),), 0)


async def test_posting_settles_the_lease_and_counts_an_overrun_as_unleased(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 60, limit=100)
    assert await desk.post(incarnation, (allowance, 5, 5), (allowance, 20, 23)) == {allowance: 3}
    status = await desk.status(allowance)
    assert (status.spent, status.unleased, status.outstanding, status.available) == (28, 3, 35, 37)
    assert await desk.uncovered() == 0


async def test_an_old_sequence_after_a_newer_one_gives_nothing_and_tells_the_totals(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 3, limit=10)
    await desk.sync(incarnation, asking(3, allowance, 2))
    answer = await desk.sync(incarnation, asking(2, allowance, 4))
    assert (answer.sequence, answer.asks, answer.leases[0].granted) == (2, None, 5)


async def test_an_old_total_does_not_lower_what_was_returned(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 8, limit=10)
    await desk.sync(incarnation, report(2, allowance, returned=5))
    answer = await desk.sync(incarnation, report(1, allowance, returned=2))
    assert (answer.leases[0].returned, answer.leases[0].available) == (5, 7)


async def test_a_process_cannot_return_more_than_it_has(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 3, limit=10)
    with pytest.raises(asyncpg.CheckViolationError):
        await desk.sync(incarnation, report(2, allowance, returned=4))


@pytest.mark.parametrize(("limit", "want", "given"), [(HUGE, 9, 9), (40, 40, 10), (3, 3, 0), (-8, 8, 0)])
async def test_a_renewal_gets_its_want_but_at_most_a_quarter(
    desk: Desk, limit: int, want: int, given: int
) -> None:
    allowance, incarnation = await desk.allowance(limit), await desk.incarnation()
    answer = await desk.sync(incarnation, report(1, allowance, want=want))
    assert answer.leases[0].granted == given


async def test_under_recall_a_renewal_gets_nothing_and_a_whole_need_does(desk: Desk) -> None:
    allowance, incarnation, other = (
        await desk.allowance(40),
        await desk.incarnation(),
        await desk.incarnation(),
    )
    await desk.sync(other, asking(1, allowance, 1))
    await desk.sync(other, asking(2, allowance, 40))
    assert (await desk.sync(incarnation, report(1, allowance, want=5))).leases[0].granted == 0
    assert (await desk.sync(incarnation, asking(2, allowance, 5))).leases[0].granted == 5


async def test_a_lowered_limit_is_under_recall_until_it_fits_again(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 8, limit=10)
    await desk.change_limit(allowance, by=-5)
    state = (await desk.sync(incarnation, report(2, allowance))).leases[0]
    assert (state.available, state.recall_ms) == (-3, 1000)
    state = (await desk.sync(incarnation, report(3, allowance, returned=4))).leases[0]
    assert (state.available, state.recall_ms) == (1, 0)


async def test_needs_are_granted_all_or_none(desk: Desk) -> None:
    plenty, scarce = await desk.allowance(10, scope="a"), await desk.allowance(2, scope="b")
    incarnation = await desk.incarnation()
    message = Sync(1, (), ((Need(plenty, 3), Need(scarce, 3)), (Need(plenty, 4), Need(scarce, 2))))
    answer = await desk.sync(incarnation, message)
    assert answer.asks == ((scarce,), ())
    assert await desk.outstanding(incarnation) == {plenty: 4, scarce: 2}


async def test_a_need_of_nothing_is_met_even_without_balance(desk: Desk) -> None:
    allowance, incarnation = await desk.allowance(-5), await desk.incarnation()
    assert (await desk.sync(incarnation, asking(1, allowance, 0))).asks == ((),)


async def test_an_unknown_allowance_lacks(desk: Desk) -> None:
    nowhere, incarnation = allowance_id(), await desk.incarnation()
    answer = await desk.sync(incarnation, asking(1, nowhere, 1))
    assert (answer.asks, answer.leases) == (((nowhere,),), ())


async def test_an_unknown_incarnation_is_a_closed_one(desk: Desk) -> None:
    answer = await desk.sync(incarnation_id(), asking(1, await desk.allowance(5), 1))
    assert answer == Answer(1, closed=True)


async def test_a_sync_that_arrives_after_the_close_gives_nothing(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 3, limit=10)
    await desk.close(incarnation)
    assert await desk.sync(incarnation, asking(2, allowance, 3)) == Answer(2, closed=True)
    assert (await desk.status(allowance)).available == 10


async def test_a_close_keeps_what_is_parked_and_a_repair_takes_or_returns_it(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 9, limit=10)
    await desk.post(incarnation, (allowance, 2, 2))
    await desk.close(incarnation, {allowance: 5})
    await desk.close(incarnation, {allowance: 5})
    assert await desk.outstanding(incarnation) == {allowance: 5}
    assert await desk.post(incarnation, (allowance, 5, 3)) == {allowance: 0}
    status = await desk.status(allowance)
    assert (status.spent, status.outstanding, status.unleased) == (5, 0, 0)
    assert await desk.uncovered() == 0


async def test_use_after_an_operators_release_is_unleased_and_no_alarm(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 6, limit=10)
    await desk.close(incarnation, released=True)
    assert (await desk.status(allowance)).available == 10
    assert await desk.post(incarnation, (allowance, 4, 4)) == {allowance: 4}
    status = await desk.status(allowance)
    assert (status.spent, status.unleased, status.available) == (4, 4, 6)
    assert await desk.uncovered() == 0


async def test_use_that_a_living_lease_does_not_cover_raises_the_alarm(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 6, limit=10)
    assert await desk.post(incarnation, (allowance, 8, 8)) == {allowance: 2}
    assert await desk.uncovered() == 2


async def test_an_incarnation_closed_before_it_was_registered_stays_closed(desk: Desk) -> None:
    unheard = incarnation_id()
    await desk.close(unheard)
    wire = Wire(desk.pool, unheard)
    assert not await wire.register("test")
    await wire.close()


async def test_a_post_to_no_allowance_is_refused(desk: Desk) -> None:
    with pytest.raises(IntegrityError, match="no allowance"):
        await desk.post(await desk.incarnation(), (allowance_id(), 1, 1))


async def test_amounts_below_nothing_are_refused(desk: Desk) -> None:
    with pytest.raises(ValueError, match="never negative"):
        await desk.post(await desk.incarnation(), (await desk.allowance(5), 1, -1))


async def test_what_does_not_exist_has_no_status_and_no_limit(desk: Desk) -> None:
    with pytest.raises(AllowanceUnknown):
        await desk.status(allowance_id())
    with pytest.raises(AllowanceUnknown):
        await desk.change_limit(allowance_id(), by=1)


async def test_no_statement_lowers_a_lease_or_removes_it(desk: Desk) -> None:
    await borrowed(desk, 6, limit=10)
    with pytest.raises(asyncpg.RestrictViolationError):
        await desk.pool.execute("UPDATE lease SET granted = granted - 1")
    with pytest.raises(asyncpg.RestrictViolationError):
        await desk.pool.execute("DELETE FROM lease")


async def test_recalls_returns_to_askers_and_limits_are_told(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 6, limit=10)
    asker = await desk.incarnation()
    async with desk.hearing() as heard:
        await desk.sync(incarnation, report(2, allowance, returned=1))
        assert await heard() == [], "a return that nobody waits for is told to nobody"
        await desk.sync(asker, asking(1, allowance, 9))
        assert await heard() == [f"allowance:{allowance}"], "a recall"
        await desk.sync(asker, asking(2, allowance, 9))
        assert await heard() == [], "holders know of it already"
        await desk.sync(incarnation, report(3, allowance, returned=2))
        assert await heard() == [f"allowance:{allowance}"], "a return under recall"
        await desk.close(incarnation)
        assert await heard() == [f"allowance:{allowance}"], "a close under recall"
        await desk.change_limit(allowance, by=1)
        assert await heard() == [f"allowance:{allowance}"], "another limit"
