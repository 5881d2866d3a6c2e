"""Of which leases a renewal speaks: those that want, gave back or consumed something, or were silent long.

Only leases that something happens to are looked at. One that comes to rest is forgotten as soon as nothing
of it is out, so that neither memory nor a renewal grows with every allowance that was ever seen; until then
the authority is asked now and then whether its settlements are posted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from billing.quota.lease import Lease
from billing.quota.leases import Leases

MOST_NAMED = 300
"""Leases named by one message at most: the rest of a renewal follows with the next, each well in time."""
REST_S = 2.0
"""Time between two looks at a lease at rest whose settlements may not all be posted."""


class Renewals:
    """The walk over the leases of one process."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._resting: deque[tuple[float, Lease]] = deque()
        self._to_come: list[Lease] = []

    def begin(self) -> None:
        """Another renewal: all active leases are to come."""
        self._to_come = list(self._leases.active)

    def stop(self) -> None:
        """Name no more of those to come: another renewal will."""
        self._to_come = []

    @property
    def is_under_way(self) -> bool:
        """True if the last message could not name all that were to come."""
        return bool(self._to_come)

    def walk(self, now: float) -> Iterator[tuple[Lease, int]]:
        """The next leases to be named, with what each wants. They may give back some."""
        named = 0
        while self._to_come and named < MOST_NAMED:
            lease = self._to_come.pop()
            if not lease.active:
                continue
            want = lease.renew(now)
            if want or lease.must_be_named(now):
                named += 1
                yield lease, want
            elif lease.at_rest:
                self._lay(lease, now)
        yield from self._look_at_resting(now, most=MOST_NAMED - named)

    def next_look(self) -> float | None:
        """When the first lease at rest is to be looked at."""
        return self._resting[0][0] if self._resting else None

    def _lay(self, lease: Lease, now: float) -> None:
        self._leases.rest(lease)
        if lease.is_clear:
            self._leases.forget(lease)
        elif not lease.held and not lease.is_resting:  # the end of a hold wakes it
            lease.is_resting = True
            self._resting.append((now + REST_S, lease))

    def _look_at_resting(self, now: float, *, most: int) -> Iterator[tuple[Lease, int]]:
        while most and self._resting and self._resting[0][0] <= now:
            _, lease = self._resting.popleft()
            lease.is_resting = False
            if lease.active:
                continue
            if not lease.is_clear:
                most -= 1
                yield lease, 0
            self._lay(lease, now)
