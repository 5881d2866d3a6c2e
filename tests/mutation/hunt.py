"""Hunts mutants: each in a process of its own, by the simulator or by the tests that concern it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from tests.mutation.ground import Ground
from tests.mutation.mutants import NONE
from tests.mutation.patch import ROOT, Mutant

PATIENCE_S = 240.0
"""Longest hunt for one mutant; one that takes longer hangs, which is noticed too."""
_CAUGHT, _SURVIVED = 1, 0
_END_S = 10.0
_HUNG = "it hung, or died without a word"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.   caught_by: nobody, or who noticed.   seed: of the run that did.

    found: the first thing that was wrong.
    """

    name: str
    does: str
    caught_by: str | None
    seed: int | None
    found: str
    took_s: float


class Unhuntable(Exception):
    """A hunt that proves nothing: the sound product is caught too, or the hunter broke."""


@dataclass(frozen=True)
class Hunter:
    """Hunts in processes of their own.

    seeds, runs: at most so many simulated runs for each mutant, of seeds up to that one.
    """

    ground: Ground
    seeds: int
    runs: int

    async def hunt_all(
        self,
        mutants: Sequence[Mutant],
        *,
        at_once: int = 2,
        on_end: Callable[[Verdict], None] = lambda verdict: None,
    ) -> list[Verdict]:
        """The verdicts, in the order of the mutants.

        Raises Unhuntable if the tests that are to catch them do not let the sound product pass. Whether
        the simulations do is for the caller to know.
        """
        free = asyncio.Semaphore(at_once)

        async def one(mutant: Mutant) -> Verdict:
            async with free:
                verdict = await self.hunt(mutant)
            on_end(verdict)
            return verdict

        if tests := tuple(sorted({test for mutant in mutants for test in mutant.tests})):
            sound = await self.hunt(replace(NONE, tests=tests))
            if sound.caught_by is not None:
                raise Unhuntable(f"the product as it is does not pass {sound.caught_by}: {sound.found}")
        return await asyncio.gather(*map(one, mutants))

    async def hunt(self, mutant: Mutant) -> Verdict:
        """Look for what a mutant breaks. Raises Unhuntable if the hunter itself broke."""
        started = monotonic()
        where = (str(self.seeds), str(self.runs), *self.ground.words())
        how = ("test", *mutant.tests) if mutant.tests else ("simulate", *where)
        code, output = await _run("-m", "tests.mutation", mutant.name, *how)
        if code not in (None, _CAUGHT, _SURVIVED):
            raise Unhuntable(f"{mutant.name}: exit {code}: {output[-2000:]}")
        took_s = round(monotonic() - started, 1)
        if code == _SURVIVED:
            return Verdict(mutant.name, mutant.does, None, None, "", took_s)
        if mutant.tests:
            failed = next((line for line in output.splitlines() if line.startswith("FAILED ")), _HUNG)
            test, _, words = failed.removeprefix("FAILED ").partition(" - ")
            return Verdict(mutant.name, mutant.does, test, None, words, took_s)
        said = _last_object(output)
        return Verdict(mutant.name, mutant.does, "simulation", said.get("seed"), said["found"], took_s)


async def _run(*arguments: str) -> tuple[int | None, str]:
    """Exit code and output; no code if it had to be ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    except TimeoutError:
        return None, ""
    finally:
        await _end(process)
    return process.returncode, output.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        end()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)


def _last_object(output: str) -> dict[str, Any]:
    objects = [line for line in output.splitlines() if line.startswith("{")]
    return dict(json.loads(objects[-1])) if objects else {"found": _HUNG}
