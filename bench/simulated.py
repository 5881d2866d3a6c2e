"""Simulated runs, summed over several processes.

`python -m bench.simulated START STOP STEP FOLDER TEMPLATE` is one of them: it prints a line of JSON for
each run. It has to be started with a fixed hash seed, which is part of a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutation.ground import Ground

PROCESSES = 2


@dataclass
class Sum:
    """The numbers of many runs.   failed: by seed, the first thing that was wrong."""

    numbers: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, line: bytes) -> None:
        run = json.loads(line)
        for name, number in run["numbers"].items():
            self.numbers[name] += number
        if run["findings"]:
            self.failed[run["seed"]] = run["findings"][0]


async def simulate_many(seeds: range, *, ground: Ground, on_run: Callable[[], None]) -> Sum:
    """The sum over all seeds. Raises RuntimeError if a child breaks."""
    total = Sum()
    shares = [seeds[number::PROCESSES] for number in range(PROCESSES)]
    await asyncio.gather(*(_child(share, ground, total=total, on_run=on_run) for share in shares if share))
    return total


async def _child(seeds: range, ground: Ground, *, total: Sum, on_run: Callable[[], None]) -> None:
    numbers = (seeds.start, seeds.stop, seeds.step)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.simulated", *map(str, numbers), str(ground.folder), ground.template),
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            total.add(line)
            on_run()
        if code := await process.wait():
            raise RuntimeError(f"the simulator ended with {code}")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def main(arguments: list[str]) -> None:
    """A child: simulates its seeds one after the other."""
    from tests.simulation.run import arena_on, simulate

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.disable(logging.CRITICAL)
    start, stop, step, folder, template = arguments
    with arena_on(Ground(Path(folder), template).server(), template=template) as arena:
        for seed in range(int(start), int(stop), int(step)):
            outcome = simulate(seed, database=arena)
            told: dict[str, Any] = {
                "seed": seed,
                "numbers": outcome.numbers(),
                "findings": outcome.findings[:3],
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
