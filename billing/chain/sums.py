"""Sums of lines by day, model and currency, exact, net of corrections. Pure; a row for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from billing.chain.wire import Correction, Event
from billing.metering.model import Meter, UsageSource

CLASSES = (*(meter.value for meter in Meter), "reasoning")


@dataclass(slots=True)
class Sum:
    """One group.   cost, corrected: picos; corrected is what went back to the tenant."""

    requests: int = 0
    unknown_requests: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    cost: int = 0
    corrected: int = 0

    @property
    def net(self) -> int:
        return self.cost - self.corrected


class Sums:
    """Of the lines so far, by (day of admission in a zone, model, currency).

    A correction counts on the day of its own posting, as it does on the pages of usage.
    """

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._by_group: dict[tuple[str, str, str], Sum] = {}

    def add(self, line: Event | Correction) -> None:
        """Take a line whose numbers were checked."""
        told_at = line.admitted_at if isinstance(line, Event) else line.posted_at
        group = self._group(told_at, line)
        if isinstance(line, Correction):
            group.corrected += int(line.amount_picos)
            return
        group.requests += 1
        group.unknown_requests += line.usage_source == UsageSource.UNKNOWN
        group.cost += int(line.cost_picos)
        for name, amount in msgspec.structs.asdict(line.usage).items():
            group.tokens[name] += amount

    def by_group(self) -> Mapping[tuple[str, str, str], Sum]:
        """Sums by (day, model, currency), in their order."""
        return dict(sorted(self._by_group.items()))

    def totals(self) -> dict[str, int]:
        """Net picos by currency."""
        totals: dict[str, int] = {}
        for (_, _, currency), group in sorted(self._by_group.items()):
            totals[currency] = totals.get(currency, 0) + group.net
        return totals

    def _group(self, at: datetime, line: Event | Correction) -> Sum:
        key = (at.astimezone(self._zone).date().isoformat(), line.model, line.currency)
        return self._by_group.setdefault(key, Sum())
