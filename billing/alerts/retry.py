"""When a delivery that failed is tried again. Pure."""

from __future__ import annotations

FIRST_WAIT_S = 10
LONGEST_WAIT_S = 6 * 3600
ATTEMPTS = 11
"""Tried so often, which takes 21 to 26 hours, a delivery is dead."""


def wait_ms(attempts: int, *, draw: float) -> int | None:
    """Milliseconds to wait after so many failed attempts; None: it is dead.

    attempts: 1 or more.   draw: uniform in [0, 1): waits are up to a quarter longer, so that what failed
    together does not come back together.
    """
    if attempts >= ATTEMPTS:
        return None
    wait_s: int = min(FIRST_WAIT_S * 3 ** (attempts - 1), LONGEST_WAIT_S)
    return wait_s * 1000 + int(wait_s * 250 * draw)
