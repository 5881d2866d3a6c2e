"""What was really consumed of a rate, and when: the exact bucket in true time, which no party sees whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.ids import IncarnationId
from billing.quota.model import Rate

MICROS = 1_000_000


@dataclass
class Draw:
    """What one request consumes of a lease. running: it may consume more."""

    process: IncarnationId
    epoch: int
    held: int
    admitted_us: int
    events: list[tuple[int, int]] = field(default_factory=list)
    counted: int = 0
    running: bool = True


class Flow:
    """All draws of one rate."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._draws: dict[int, Draw] = {}

    def admitted(self, request: int, process: IncarnationId, *, epoch: int, held: int, now_us: int) -> None:
        self._draws[request] = Draw(process, epoch, held, now_us)

    def consumed(self, request: int, total: int, *, now_us: int, ends: bool = False) -> None:
        draw = self._draws.get(request)
        if draw is not None and draw.running:
            if total > draw.counted:
                draw.events.append((now_us, total - draw.counted))
                draw.counted = total
            draw.running = not ends

    def died(self, process: IncarnationId) -> None:
        for draw in self._draws.values():
            draw.running = draw.running and draw.process != process

    def lease_ended(self, process: IncarnationId, epoch: int, *, at_us: int) -> None:
        """What was admitted from it by then is consumed by then; what runs on is its owner's patience."""
        for draw in self._draws.values():
            if (draw.process, draw.epoch) != (process, epoch) or draw.admitted_us > at_us:
                continue
            draw.events = [(min(when, at_us), amount) for when, amount in draw.events]
            if draw.running:
                draw.events.append((at_us, draw.held - draw.counted))
                draw.counted, draw.running = draw.held, False

    def check(self) -> None:
        full = self._rate.burst * MICROS * 60
        level, at = full, 0
        for when, amount in sorted(event for draw in self._draws.values() for event in draw.events):
            level = min(level + (when - at) * self._rate.per_minute, full) - amount * MICROS * 60
            at = when
            assert level >= 0, "R1: the exact bucket in true time is never below 0"
