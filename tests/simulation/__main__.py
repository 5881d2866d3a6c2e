"""`python -m tests.simulation`: many seeds with a bar and a sum, or one seed again with its trace.

Exits with 1 if any run broke a law. A failing seed is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.arena import Arena
from tests.simulation.outcome import ZEROS, Outcome, total
from tests.simulation.run import open_arena, simulate

_MOST_FAILURES = 20
"""After so many it is plain that something is wrong."""


def main() -> int:
    """Run what is asked for; returns the exit code."""
    _fix_hashes()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # killed settlers return no connection to their pool
    asked = _arguments()
    with open_arena() as arena:
        if asked.seed is not None:
            return _again(arena, asked.seed, trace=asked.trace)
        return _many(arena, range(asked.first_seed, asked.first_seed + asked.runs), as_json=asked.json)


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
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--json", action="store_true", help="print the sum as JSON")
    return parser.parse_args()


def _again(arena: Arena, seed: int, *, trace: bool) -> int:
    outcome = simulate(seed, database=arena, show=print if trace else None)
    _print_sum(outcome)
    print(f"trace {outcome.digest}")
    return 0 if outcome.ok else 1


def _many(arena: Arena, seeds: range, *, as_json: bool) -> int:
    sum_, started = total(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as progress:
        bar = progress.add_task("runs", total=len(seeds))
        for seed in seeds:
            outcome = simulate(seed, database=arena)
            sum_.add(outcome)
            if not outcome.ok:
                _print_failure(progress, outcome)
            progress.advance(bar)
            if len(sum_.failed_seeds) >= _MOST_FAILURES:
                break
    if as_json:
        seconds = round(time.monotonic() - started, 1)
        told = {"seconds": seconds, "failed_seeds": sum_.failed_seeds, "findings": sum_.findings[:50]}
        print(json.dumps(sum_.numbers() | told))
    else:
        _print_sum(sum_)
        print(f"{sum_.runs} runs in {time.monotonic() - started:.0f} s")
    return 0 if sum_.ok else 1


def _print_failure(progress: Progress, outcome: Outcome) -> None:
    progress.console.print(f"seed {outcome.seed} broke a law:", markup=False)
    for finding in outcome.findings[:10]:
        progress.console.print(f"  {finding}", markup=False)
    progress.console.print(f"  again: python -m tests.simulation --seed {outcome.seed} --trace", markup=False)


def _print_sum(outcome: Outcome) -> None:
    for name, number in outcome.numbers().items():
        mark = "" if name not in ZEROS else "  ✓" if not number else "  ✗"
        print(f"{name:>22} {number:>9,}{mark}")
    for finding in outcome.findings[:20]:
        print(f"  {finding}")


if __name__ == "__main__":
    sys.exit(main())
