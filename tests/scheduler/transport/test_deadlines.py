from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from scheduler.transport.deadlines import DeadlineWatch


@dataclass(eq=False)
class Promise:
    """Something with a deadline, that notes its end."""

    watch: DeadlineWatch
    at: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    reasons: list[str] = field(default_factory=list)
    takes_along: Promise | None = None

    def due(self) -> float:
        return self.at

    def expire(self) -> None:
        assert monotonic() >= self.at
        self.fail("expired")
        if self.takes_along is not None:
            self.takes_along.fail("taken along")

    def fail(self, reason: str) -> None:
        self.watch.discard(self)
        self.reasons.append(reason)
        self.ended.set()


def watch() -> DeadlineWatch:
    return DeadlineWatch(asyncio.get_running_loop())


async def test_whatever_is_overdue_expires_once_in_any_order_of_arrival() -> None:
    own = watch()
    promises = [Promise(own, monotonic() + delay) for delay in (0.1, 0.02, 0, 0.05, -1)]
    for promise in promises:
        own.add(promise)
    for promise in promises:
        await promise.ended.wait()
    assert [promise.reasons for promise in promises] == [["expired"]] * 5


async def test_a_deadline_that_moved_back_is_kept_where_it_is() -> None:
    own = watch()
    patient, hasty = Promise(own, monotonic()), Promise(own, monotonic() + 0.05)
    own.add(patient)
    own.add(hasty)
    patient.at = inf
    await hasty.ended.wait()
    assert patient.reasons == []
    patient.at = monotonic()
    own.moved(patient)
    await patient.ended.wait()


async def test_one_expiry_may_end_another() -> None:
    own, now = watch(), monotonic()
    first, second = Promise(own, now), Promise(own, now)
    first.takes_along, second.takes_along = second, first
    own.add(first)
    own.add(second)
    await first.ended.wait()
    await second.ended.wait()
    assert sorted(first.reasons + second.reasons) == ["expired", "taken along"]


async def test_closing_fails_all_that_is_watched() -> None:
    own = watch()
    promise = Promise(own, inf)
    own.add(promise)
    own.close("client closed")
    assert promise.reasons == ["client closed"]
