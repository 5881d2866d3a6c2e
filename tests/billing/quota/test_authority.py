"""The authority's moves on real PostgreSQL, one session at a time."""

from __future__ import annotations

from app.core.ids import AllowanceId, IncarnationId
from billing.quota.model import LeaseReport, Need, Sync
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
    allowance, incarnation = await desk.allowance(5), await desk.incarnation()
    answer = await desk.sync(incarnation, asking(1, allowance, 6))
    assert answer.asks == ((allowance,),)
    assert answer.leases[0].granted == 0
    assert 0 < answer.leases[0].recall_ms <= 1000


async def test_posting_settles_the_lease_and_counts_an_overrun_as_unleased(desk: Desk) -> None:
    allowance, incarnation = await borrowed(desk, 60, limit=100)
    assert await desk.post(incarnation, (allowance, 20, 5), (allowance, 20, 23)) == {allowance: 3}
    status = await desk.status(allowance)
    assert (status.spent, status.unleased, status.outstanding, status.available) == (28, 3, 35, 37)
    assert await desk.uncovered() == 0
