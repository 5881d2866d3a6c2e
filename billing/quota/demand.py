"""How much of a lease a process keeps: decided by what its requests took of late.

Requests hold far more than they use and give the rest back at their end, so demand is what admissions
took between two renewals, at its peak, falling by a quarter with each renewal. A lease is filled up to
four times that when it falls below twice that: traffic may double within one renewal and no request
waits. What lies far above, or idle for two seconds (of a rate, one), goes back.
"""

from __future__ import annotations

FILL = 4
IDLE_S = 2.0
RATE_IDLE_S = 1.0


def peak(previous: int, taken: int) -> int:
    """Demand per renewal: `taken` since the last one, or the former peak less a quarter of it."""
    return max(taken, previous - previous // 4)


def want(free: int, demand: int) -> int:
    """What a renewal asks for: nothing while half of the target is there."""
    target = FILL * demand
    return target - free if 2 * free < target else 0


def surplus(free: int, demand: int) -> int:
    """What a renewal returns: all above the target, once there is twice the target."""
    target = FILL * demand
    return free - target if free > 2 * target else 0
