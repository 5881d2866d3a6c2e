"""Hunts mutants: each in a process of its own, by the simulator, then by the tests that concern it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic
from typing import NamedTuple

from tests.mutation.ground import Ground
from tests.mutation.mutants import NONE
from tests.mutation.patch import ROOT, Mutant, Stir
from tests.simulation.plan import Plan, plan_of

PATIENCE_S = 900.0
"""Longest hunt for one mutant: a run that hangs in earnest proves nothing."""
_CAUGHT, _SURVIVED = 1, 0
_END_S = 10.0
_REPLAYS = ("journal_copied", "position_back")


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.   caught_by: nobody, or who noticed.   seed: of the run that did.

    found: the first thing that was wrong.
    """

    name: str
    does: str
    caught_by: str | None = None
    seed: int | None = None
    found: str = ""
    took_s: float = 0.0


class Unhuntable(Exception):
    """A hunt that proves nothing: the sound product is caught too, or the hunter broke."""


class Caught(NamedTuple):
    """By which seed or test, and the first thing that was wrong."""

    by: int | str
    found: str


@dataclass(frozen=True)
class Hunter:
    """Hunts in processes of their own.

    most_seed, runs: at most so many simulated runs for each mutant, of seeds up to that one.
    passed: seeds which the sound product is known to pass; others are tried with it before they count.
    """

    ground: Ground
    most_seed: int
    runs: int
    passed: Container[int] = frozenset()

    async def hunt_all(
        self,
        mutants: Sequence[Mutant],
        *,
        at_once: int = 2,
        on_end: Callable[[Verdict], None] = lambda verdict: None,
    ) -> list[Verdict]:
        """The verdicts, in the order of the mutants.

        Raises Unhuntable if a test that is to catch one does not let the sound product pass.
        """
        free = asyncio.Semaphore(at_once)

        async def one(mutant: Mutant) -> Verdict:
            async with free:
                verdict = await self.hunt(mutant)
            on_end(verdict)
            return verdict

        tests = sorted({test for mutant in mutants for test in mutant.tests})
        if tests and (broken := await self._test(NONE, tests)):
            raise Unhuntable(f"the product as it is does not pass {broken.by}: {broken.found}")
        return await asyncio.gather(*map(one, mutants))

    async def hunt(self, mutant: Mutant) -> Verdict:
        """Look for what a mutant breaks. Raises Unhuntable if the hunter itself broke."""
        started = monotonic()
        caught = await self._hunt_by_points(mutant) or await self._hunt_by_seeds(mutant)
        if caught is None and mutant.tests:
            caught = await self._test(mutant, mutant.tests)
        verdict = Verdict(mutant.name, mutant.does, took_s=round(monotonic() - started, 1))
        if caught is None:
            return verdict
        if isinstance(caught.by, str):
            return replace(verdict, caught_by=caught.by, found=caught.found)
        return replace(verdict, caught_by="simulation", seed=caught.by, found=caught.found)

    async def _hunt_by_points(self, mutant: Mutant) -> Caught | None:
        """Raises Unhuntable if the sound product is caught at such a point too."""
        if not mutant.dies_at or (caught := await self._die(mutant)) is None:
            return None
        if broken := await self._die(replace(NONE, dies_at=mutant.dies_at)):
            raise Unhuntable(f"the product as it is breaks at {broken.by}: {broken.found}")
        return Caught(f"point {caught.by}", caught.found)

    async def _die(self, mutant: Mutant) -> Caught | None:
        where = (str(self.ground.folder), self.ground.template)
        output = await _run(mutant.name, "die", *where, *mutant.dies_at)
        if output is None:
            return None
        said = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return Caught(said["seed"], said["found"])

    async def _hunt_by_seeds(self, mutant: Mutant) -> Caught | None:
        seeds = list(islice(seeds_of(mutant.stirred_by, most=self.most_seed), self.runs))
        while caught := await self._simulate(mutant, seeds):
            assert isinstance(caught.by, int)
            if caught.by in self.passed or await self._simulate(NONE, [caught.by]) is None:
                return caught
            del seeds[: seeds.index(caught.by) + 1]
        return None

    async def _simulate(self, mutant: Mutant, seeds: Sequence[int]) -> Caught | None:
        where = (str(self.ground.folder), self.ground.template)
        output = await _run(mutant.name, "simulate", *where, *map(str, seeds)) if seeds else None
        if output is None:
            return None
        said = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return Caught(said["seed"], said["found"])

    async def _test(self, mutant: Mutant, tests: Sequence[str]) -> Caught | None:
        output = await _run(mutant.name, "test", *tests)
        if output is None:
            return None
        failed = next(line for line in output.splitlines() if line.startswith("FAILED "))
        test, _, found = failed.removeprefix("FAILED ").partition(" - ")
        return Caught(test, found)


def seeds_of(stir: Stir, *, most: int) -> Iterator[int]:
    """The seeds up to `most` of simulated runs in which that happens."""
    happens: dict[Stir, Callable[[Plan], bool]] = {
        "anything": lambda plan: True,
        "power": lambda plan: any(death.power for death in plan.deaths),
        "settler": lambda plan: any(death.who == "settler" for death in plan.deaths),
        "statement": lambda plan: any(
            death.who == "settler" and death.kind in ("call", "called") for death in plan.deaths
        ),
        "gateway": lambda plan: any(death.who.startswith("gateway") for death in plan.deaths),
        "price": lambda plan: any(trouble.what == "price" for trouble in plan.troubles),
        "choices": lambda plan: any(wish.body.get("n", 1) > 1 for wish in plan.calls),
        "replay": lambda plan: any(trouble.what in _REPLAYS for trouble in plan.troubles),
        "nothing": lambda plan: False,
    }
    return (seed for seed in range(1, most + 1) if happens[stir](plan_of(seed)))


async def _run(*arguments: str) -> str | None:
    """The output of a hunt that caught something, None of one that did not. Raises Unhuntable."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mutation", *arguments),
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    except TimeoutError:
        raise Unhuntable(f"{arguments[:2]} did not end within {PATIENCE_S} s") from None
    finally:
        await _end(process)
    text = output.decode(errors="replace")
    if process.returncode not in (_CAUGHT, _SURVIVED):
        raise Unhuntable(f"{arguments[:2]} ended with {process.returncode}: {text[-2000:]}")
    return text if process.returncode == _CAUGHT else None


async def _end(process: asyncio.subprocess.Process) -> None:
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        end()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)
