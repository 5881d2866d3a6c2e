"""A rate's bucket on its own: what a process goes by while the authority can't be reached. Pure."""

from __future__ import annotations

from billing.quota.model import Rate

MICROS = 1_000_000


class Bucket:
    """Fills at a `holders`-th of a rate, up to its burst. Amounts inside are millionths.

    level: what it begins with. All holders that begin with what they have of a full bucket stay together
    within burst + rate · time, counted from that moment.
    """

    __slots__ = ("_at", "_level_micros")

    def __init__(self, level: int, *, now: float) -> None:
        self._level_micros = level * MICROS
        self._at = now

    def take(self, amount: int, *, rate: Rate, holders: int, now: float) -> bool:
        """Take `amount` if it is there by `now`."""
        gained = int((now - self._at) * rate.per_minute * MICROS / (60 * holders))
        self._level_micros = min(self._level_micros + max(gained, 0), rate.burst * MICROS)
        self._at = max(self._at, now)
        if amount * MICROS > self._level_micros:
            return False
        self._level_micros -= amount * MICROS
        return True

    def put_back(self, amount: int) -> None:
        self._level_micros += amount * MICROS
