"""Where a settler stands, and what several that share a folder make together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """What a settler tells of its journals.

    oldest_ms: when the oldest settlement that is not posted happened.   stopped: reasons by incarnation.
    counts: of its counters, from its start on.
    """

    oldest_ms: int | None = None
    journals: int = 0
    stopped: dict[str, str] = {}
    unfreed: int = 0
    failure: str | None = None
    counts: dict[str, float] = {}

    def lag_ms(self, now_ms: int) -> int:
        """The age of the oldest settlement that is not posted; 0 if all are."""
        return 0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)

    def health(self, now_ms: int) -> tuple[bool, dict[str, Any]]:
        """(ready, facts) for the probe."""
        facts = {"lag_ms": self.lag_ms(now_ms), "journals": self.journals, "stopped_journals": self.stopped}
        return self.failure is None, {**facts, "failure": self.failure}


class Company(Protocol):
    """Others that settle the same folder. No journal is ever in two shares."""

    def share(self, paths: list[Path]) -> list[Path]:
        """Which of the folder's journals are one's own."""

    def standings(self) -> Sequence[Standing]:
        """Where the others stand, as far as they told."""


class Alone:
    """No others."""

    def share(self, paths: list[Path]) -> list[Path]:
        return paths

    def standings(self) -> Sequence[Standing]:
        return ()


def together(standings: Sequence[Standing]) -> Standing:
    """Several settlers as if they were one: sums, the oldest settlement, the first failure."""
    counts: Counter[str] = Counter()
    for each in standings:
        counts.update(each.counts)
    return Standing(
        oldest_ms=min((each.oldest_ms for each in standings if each.oldest_ms is not None), default=None),
        journals=sum(each.journals for each in standings),
        stopped={name: why for each in standings for name, why in each.stopped.items()},
        unfreed=sum(each.unfreed for each in standings),
        failure=next((each.failure for each in standings if each.failure is not None), None),
        counts=dict(counts),
    )
