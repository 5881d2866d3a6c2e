"""Whether anything is lost, counted twice or charged wrong when processes die: counted, not asserted.

`make bench-faults` plays three things. Real rounds: `kill -9` under load on a whole stack, its books
compared after each with what clients received, engines counted and journals hold. Simulated runs: the
same code in virtual time, killed at any step. Mutants: the product with one deliberate fault each, which
the simulator (or a named test) must notice, or it proves nothing. `QUICK=1` plays a few of each.
Ends with 1 if anything is wrong or a mutant survives.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import machine
from bench.simulated import points_of, simulate_many
from tests.faults.finding import Wrong
from tests.faults.rounds import ROUNDS, Played, plan, under_fire
from tests.faults.stack import Stack, running_stack
from tests.mutation.ground import Ground, open_ground
from tests.mutation.hunt import Hunter, Verdict
from tests.mutation.mutants import ALL, REDUCED

RESULTS = Path(__file__).parent / "results"
QUICK = bool(os.environ.get("QUICK"))
SEED = int(os.environ.get("SEED", "1"))
KILLS = dict.fromkeys(("gateway", "settler", "postgres", "engine", "all"), 1) if QUICK else ROUNDS
SEEN = (
    "requests",
    "delivered_to_the_end",
    "left_by_the_client",
    "refused",
    "cut",
    "settled",
    "lost",
)
MUST_BE_ZERO = tuple(wrong.value for wrong in Wrong)
SIMULATED = range(1, 1 + (40 if QUICK else 2000))
EVERY = 40 if QUICK else 1
"""Which points of death are played: each so-manieth of a kind."""
HUNTS = 40 if QUICK else 80
"""Most simulated runs for each mutant, of seeds with which the sound product has passed."""
CONSOLE = Console(stderr=True, width=None if sys.stderr.isatty() else 150)
"""A file has no width of its own: the table would be cut to 80 columns."""


def bar() -> Progress:
    """A progress bar where people look, which leaves standard output alone."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=CONSOLE)


async def play_rounds(stack: Stack, progress: Progress) -> dict[str, Any]:
    """Every round of the seed, one after the other, and their sums."""
    rounds = plan(SEED, rounds=KILLS)
    task = progress.add_task("kill -9 under load", total=len(rounds))
    played: list[Played] = []
    async with under_fire(stack) as under:
        for one in rounds:
            progress.update(task, description=f"kill -9 {one.victim} under load")
            played.append(await under.play(one))
            progress.advance(task)
    progress.update(task, description="kill -9 under load")
    wrong = {name: played[-1].wrong[name] for name in MUST_BE_ZERO}
    return {
        "seed": SEED,
        "rounds": len(rounds),
        "by_kind": {kind: _sums(one for one in played if one.round.kind == kind) for kind in KILLS},
        "total": {**_sums(played), **wrong},
        "compared": dict(sorted(under.compared.items())),
        "looks_at_limits": under.witness.looks,
        "findings": [str(finding) for finding in under.findings[:50]],
        "each": [{**asdict(one.round), **_plain(one)} for one in played],
    }


def _plain(one: Played) -> dict[str, Any]:
    return {"took_s": one.took_s, **{name: getattr(one, name) for name in SEEN}, **one.wrong}


def _sums(played: Iterable[Played]) -> dict[str, Any]:
    """The sums over rounds. What is wrong at the end of one stays wrong: each round adds what is new."""
    sums: Counter[str] = Counter(dict.fromkeys(("rounds", *SEEN, *MUST_BE_ZERO), 0))
    for one in played:
        sums["rounds"] += 1
        sums.update({name: getattr(one, name) for name in SEEN})
        sums.update(one.new)
    return dict(sums)


def show(result: dict[str, Any]) -> None:
    """The figures as a table: a column for each kind of kill."""
    columns = {**result["by_kind"], "total": result["total"]}
    table = Table("", *columns, header_style="")
    for name in ("rounds", *SEEN, *MUST_BE_ZERO):
        style = "red" if name in MUST_BE_ZERO and any(sums[name] for sums in columns.values()) else ""
        table.add_row(name, *(str(sums[name]) for sums in columns.values()), style=style)
    CONSOLE.print(table)
    for finding in result["findings"]:
        CONSOLE.print(finding, style="red")


def simulate(progress: Progress, ground: Ground) -> dict[str, Any]:
    """The sum of the simulated runs."""
    task = progress.add_task("simulated runs", total=len(SIMULATED))
    total = simulate_many(
        [str(seed) for seed in SIMULATED], ground=ground, on_run=lambda: progress.advance(task)
    )
    for seed, found in total.failed.items():
        CONSOLE.print(
            f"seed {seed}: {found}\n  python -m tests.simulation --seed {seed} --trace", style="red"
        )
    return {"seeds": [SIMULATED.start, SIMULATED.stop - 1], **total.numbers, "failed": total.failed}


def die_everywhere(progress: Progress, ground: Ground) -> dict[str, Any]:
    """The sum of the small runs in which somebody dies, once at every point."""
    points, chosen = points_of(ground, every=EVERY)
    task = progress.add_task("points of death", total=len(chosen))
    names = [str(point) for point in chosen]
    total = simulate_many(names, ground=ground, on_run=lambda: progress.advance(task))
    for name, found in total.failed.items():
        CONSOLE.print(
            f"point {name}: {found}\n  python -m tests.simulation --point {name} --trace", style="red"
        )
    return {"points": points, **total.numbers, "failed": total.failed}


def hunt(progress: Progress, ground: Ground, *, passed: Container[int]) -> list[dict[str, Any]]:
    """What became of each mutant."""
    mutants = [mutant for mutant in ALL if mutant.name in REDUCED] if QUICK else list(ALL)
    task = progress.add_task("mutants", total=len(mutants))

    def tell(verdict: Verdict) -> None:
        progress.advance(task)
        by = f"{verdict.caught_by}, seed {verdict.seed}" if verdict.seed else verdict.caught_by
        CONSOLE.print(f"{verdict.name}: {by or 'SURVIVED'}", style="" if by else "red")

    hunter = Hunter(ground, SIMULATED[-1], runs=HUNTS, passed=passed)
    return [asdict(verdict) for verdict in asyncio.run(hunter.hunt_all(mutants, on_end=tell))]


def main() -> None:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all stacks are taken down
    before = machine.describe()
    with bar() as progress:
        with running_stack() as stack:
            real = asyncio.run(play_rounds(stack, progress))
        show(real)
        with open_ground() as ground:
            simulated = simulate(progress, ground)
            everywhere = die_everywhere(progress, ground)
            passed = {seed for seed in SIMULATED if str(seed) not in simulated["failed"]}
            mutants = hunt(progress, ground, passed=passed)
    result = {
        "benchmark": "faults",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": QUICK,
        "took_s": round(time.monotonic() - started),
        "machine": before,
        "real": real,
        "simulated": simulated,
        "points": everywhere,
        "mutants": mutants,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "faults.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(path)
    wrong = any(real["total"][name] for name in MUST_BE_ZERO) or bool(
        simulated["failed"] or everywhere["failed"]
    )
    sys.exit(wrong or not all(mutant["caught_by"] for mutant in mutants))


if __name__ == "__main__":
    main()
