"""What starts after what, and when a fallen service is tried again. Pure: names and numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter


class PlanError(ValueError):
    """The plan names something that is not in it, or waits for itself."""


@dataclass(frozen=True)
class Plan:
    """after: for each name the names that must be ready before it starts."""

    after: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        unknown = {name for names in self.after.values() for name in names} - self.after.keys()
        if unknown:
            raise PlanError(f"waits for what is not in the plan: {sorted(unknown)}")
        try:
            TopologicalSorter(self.after).prepare()
        except CycleError as error:
            raise PlanError(f"waits for itself: {' → '.join(error.args[1])}") from error

    def order(self) -> list[str]:
        """Every name, each behind all that it waits for; the plan's own order where that leaves a choice."""
        done: list[str] = []
        waiting = list(self.after)
        while waiting:
            name = next(name for name in waiting if done_all(self.after[name], done))
            waiting.remove(name)
            done.append(name)
        return done

    def dependents(self, name: str) -> list[str]:
        """What must have stopped before `name` may stop: all that waited for it to start."""
        return [other for other, names in self.after.items() if name in names]


def done_all(names: Sequence[str], done: Sequence[str]) -> bool:
    return set(names) <= set(done)


@dataclass(frozen=True)
class Backoff:
    """Doubles the wait with each fall in a row, up to a bound; a long healthy run forgives all falls."""

    first_s: float = 0.2
    most_s: float = 10.0
    forgiven_after_s: float = 30.0

    def falls(self, before: int, *, ran_s: float) -> int:
        """Falls in a row, this one included, after a run of `ran_s` seconds."""
        return 1 if ran_s >= self.forgiven_after_s else before + 1

    def delay_s(self, falls: int) -> float:
        """The wait before the next try, after `falls` ≥ 1 falls in a row."""
        return min(self.first_s * 2.0 ** min(falls - 1, 30), self.most_s)
