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

REST_S = 2.0
"""Time between two looks at a lease at rest whose settlements may not all be posted."""


class Renewals:
    """The walk over the leases of one process."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._resting: deque[tuple[float, Lease]] = deque()

    def walk(self, now: float) -> Iterator[tuple[Lease, int]]:
        """Each lease to be named by the renewal at `now`, with what it wants. It may give back some."""
        for lease in list(self._leases.active):
            want = lease.renew(now)
            if want or lease.must_be_named(now):
                yield lease, want
            elif lease.at_rest:
                self._lay(lease, now)
        yield from self._look_at_resting(now)

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

    def _look_at_resting(self, now: float) -> Iterator[tuple[Lease, int]]:
        while self._resting and self._resting[0][0] <= now:
            _, lease = self._resting.popleft()
            lease.is_resting = False
            if lease.active:
                continue
            if not lease.is_clear:
                yield lease, 0
            self._lay(lease, now)
