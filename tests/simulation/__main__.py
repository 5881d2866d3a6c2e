"""`python -m tests.simulation`: many seeds, or every point of death of small runs; or one of them again.

Exits with 1 if any run broke a law. A failing one is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.mutation.ground import Ground, open_ground
from tests.simulation.jobs import Ran, run_all
from tests.simulation.outcome import ZEROS, Sum
from tests.simulation.points import Point, choose, count, kinds, play
from tests.simulation.run import arena_on, simulate

_MOST_FAILURES = 20
"""After so many it is plain that something is wrong."""


def main() -> int:
    """Run what is asked for; returns the exit code."""
    _fix_hashes()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # killed settlers return no connection to their pool
    asked = _arguments()
    with open_ground() as ground:
        if asked.seed is not None or asked.point is not None:
            return _again(ground, asked)
        if asked.enumerate:
            tasks = _points(ground, every=asked.every)
        else:
            tasks = [str(seed) for seed in range(asked.first_seed, asked.first_seed + asked.runs)]
        return _many(ground, tasks, asked=asked)


def _fix_hashes() -> None:
    """Start again with a fixed hash seed: the order of a set of strings is part of a run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--enumerate", action="store_true", help="instead of seeds: every point of death")
    parser.add_argument("--every", type=int, default=1, help="with --enumerate: each so-manieth of a kind")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once")
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--point", type=Point.parse, help="one point of death alone, as it was printed")
    parser.add_argument("--trace", action="store_true", help="with --seed or --point: print all that happens")
    parser.add_argument("--json", action="store_true", help="print the sum as JSON")
    return parser.parse_args()


def _again(ground: Ground, asked: argparse.Namespace) -> int:
    show = print if asked.trace else None
    with arena_on(ground.server(), template=ground.template) as arena:
        if asked.point is not None:
            outcome = play(asked.point, database=arena, show=show)
        else:
            outcome = simulate(asked.seed, database=arena, show=show)
    _print_sum(outcome.numbers(), outcome.findings)
    print(f"trace {outcome.digest}")
    return 0 if outcome.ok else 1


def _points(ground: Ground, *, every: int) -> list[str]:
    """The points of death; raises SystemExit if the runs break a law without any."""
    with arena_on(ground.server(), template=ground.template) as arena:
        points, sum_ = count(arena)
    if not sum_.ok:
        raise SystemExit(str(sum_.failed))
    Console(stderr=True).print(f"{len(points)} points: {kinds(points)}", markup=False, highlight=False)
    return [str(point) for point in choose(points, every=every)]


def _many(ground: Ground, tasks: Sequence[str], *, asked: argparse.Namespace) -> int:
    sum_, started = Sum(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as progress:
        bar = progress.add_task("deaths" if asked.enumerate else "runs", total=len(tasks))

        def on_ran(ran: Ran) -> bool:
            sum_.add(ran.task, ran.numbers, ran.findings)
            if ran.findings:
                _print_failure(progress, ran)
            progress.advance(bar)
            return len(sum_.failed) >= _MOST_FAILURES

        asyncio.run(run_all(tasks, ground=ground, jobs=asked.jobs, on_ran=on_ran))
    seconds = round(time.monotonic() - started, 1)
    if asked.json:
        print(json.dumps({**sum_.numbers, "seconds": seconds, "failed": sum_.failed}))
    else:
        _print_sum(sum_.numbers, [])
        print(f"{sum_.numbers['runs']} runs in {seconds:.0f} s")
    return 1 if sum_.failed else 0


def _print_failure(progress: Progress, ran: Ran) -> None:
    words = f"{ran.task} broke a law:", *(f"  {finding}" for finding in ran.findings), f"  again: {ran.again}"
    for line in words:
        progress.console.print(line, markup=False, highlight=False)


def _print_sum(numbers: dict[str, int], findings: Sequence[str]) -> None:
    for name, number in numbers.items():
        mark = "" if name not in ZEROS else "  ✓" if not number else "  ✗"
        print(f"{name:>22} {number:>9,}{mark}")
    for finding in findings[:20]:
        print(f"  {finding}")


if __name__ == "__main__":
    sys.exit(main())
