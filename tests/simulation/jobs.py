"""Many runs in several processes, each with a database of its own on one server.

A child (`python -m tests.simulation.jobs FOLDER TEMPLATE`) reads a seed or a point from each line of its
input and answers with a line of JSON; it gets the next one then. It has to be started with a fixed hash
seed, which is part of a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.ground import Ground
from tests.simulation.outcome import Outcome


@dataclass(frozen=True)
class Ran:
    """A run and what came of it.   task: its seed, or its point, in words."""

    task: str
    numbers: dict[str, int]
    findings: list[str]

    @property
    def again(self) -> str:
        """The command that plays it once more."""
        which = "--seed" if self.task.isdigit() else "--point"
        return f"python -m tests.simulation {which} {self.task} --trace"


async def run_all(
    tasks: Sequence[str], *, ground: Ground, jobs: int, on_ran: Callable[[Ran], bool | None]
) -> None:
    """Play each task in one of `jobs` processes, until `on_ran` says True: enough.

    Raises RuntimeError if a child breaks.
    """
    left = iter(tasks)
    children = [_child(left, ground, on_ran=on_ran) for _ in range(min(jobs, len(tasks)))]
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child)


async def _child(left: Iterator[str], ground: Ground, *, on_ran: Callable[[Ran], bool | None]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.simulation.jobs", str(ground.folder), ground.template),
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for task in left:
            process.stdin.write(f"{task}\n".encode())
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"a simulator broke at {task}")
            if on_ran(Ran(task, **json.loads(line))):
                deque(left, maxlen=0)  # the others get nothing more either
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def main(arguments: Sequence[str]) -> None:
    """A child: plays what its input names."""
    from tests.simulation.points import Point, play
    from tests.simulation.run import arena_on, simulate

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # killed settlers return no connection to their pool
    folder, template = arguments
    with arena_on(Ground(Path(folder), template).server(), template=template) as arena:
        for line in sys.stdin:
            task = line.strip()
            if task.isdigit():
                outcome = simulate(int(task), database=arena)
            else:
                outcome = play(Point.parse(task), database=arena)
            print(_answer(outcome), flush=True)


def _answer(outcome: Outcome) -> str:
    return json.dumps({"numbers": outcome.numbers(), "findings": outcome.findings[:10]})


if __name__ == "__main__":
    main(sys.argv[1:])
