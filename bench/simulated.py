"""Simulated runs for `bench.faults`, over several processes: seeds, and every point of a small run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.mutation.ground import Ground
from tests.simulation.jobs import Ran, run_all
from tests.simulation.outcome import Sum
from tests.simulation.points import Point, choose, count
from tests.simulation.run import arena_on

PROCESSES = 2


def simulate_many(tasks: Sequence[str], *, ground: Ground, on_run: Callable[[], None]) -> Sum:
    """The sum over all runs: of seeds, or of points. Raises RuntimeError if a child breaks."""
    total = Sum()

    def on_ran(ran: Ran) -> None:
        total.add(ran.task, ran.numbers, ran.findings)
        on_run()

    asyncio.run(run_all(tasks, ground=ground, jobs=PROCESSES, on_ran=on_ran))
    return total


def points_of(ground: Ground, *, every: int = 1) -> tuple[int, list[Point]]:
    """How many points of death there are, and each `every`th of a kind.

    Raises RuntimeError if the runs break a law without any death.
    """
    with arena_on(ground.server(), template=ground.template) as arena:
        points, undisturbed = count(arena)
    if not undisturbed.ok:
        raise RuntimeError(f"without any death: {undisturbed.failed}")
    return len(points), choose(points, every=every)
