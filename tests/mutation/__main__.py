"""`python -m tests.mutation NAME simulate SEEDS RUNS FOLDER TEMPLATE` or `… NAME test TEST…`.

What becomes of a mutant. At most RUNS seeds up to SEEDS are simulated, of those that can stir it; FOLDER is
of a PostgreSQL that runs, TEMPLATE a database in it with the newest schema.

Exits with 1 if it was caught, with 0 if it survived; a simulation prints the seed and what it found as JSON.
Without arguments, the mutants are listed.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tests.mutation.mutants import ALL, NONE
from tests.mutation.patch import Stir


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("\n".join(f"{mutant.name:32} {mutant.does}" for mutant in ALL))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name, how, *rest = arguments
    mutant = next(mutant for mutant in (NONE, *ALL) if mutant.name == name)
    mutant.infect()
    if how == "test":
        return _test(rest)
    seeds, runs, folder, template = rest
    stirring = islice(_stirring(mutant.stirred_by, most=int(seeds)), int(runs))
    return _simulate(stirring, folder=Path(folder), template=template)


def _stirring(stir: Stir, *, most: int) -> Iterator[int]:
    """The seeds up to `most` of runs in which that happens."""
    from tests.simulation.plan import Plan, plan_of

    happens: dict[Stir, Callable[[Plan], bool]] = {
        "anything": lambda plan: True,
        "power": lambda plan: any(death.power for death in plan.deaths),
        "settler": lambda plan: any(death.who == "settler" for death in plan.deaths),
        "gateway": lambda plan: any(death.who.startswith("gateway") for death in plan.deaths),
        "price": lambda plan: any(trouble.what == "price" for trouble in plan.troubles),
        "choices": lambda plan: any(wish.body.get("n", 1) > 1 for wish in plan.calls),
    }
    return (seed for seed in range(1, most + 1) if happens[stir](plan_of(seed)))


def _simulate(seeds: Iterable[int], *, folder: Path, template: str) -> int:
    from tests.mutation.ground import Ground
    from tests.simulation.run import arena_on, simulate

    logging.disable(logging.CRITICAL)
    with arena_on(Ground(folder, template).server(), template=template) as arena:
        for seed in seeds:
            try:
                findings = simulate(seed, database=arena).findings
            except Exception as error:  # noqa: BLE001 - the rim: a mutant may break anything; caught as well
                findings = [repr(error)]
            if findings:
                print(json.dumps({"seed": seed, "found": findings[0]}), flush=True)
                return 1
    return 0


def _test(tests: Sequence[str]) -> int:
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
