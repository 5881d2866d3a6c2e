"""`python -m tests.mutation NAME simulate FOLDER TEMPLATE SEED…`, `… NAME die FOLDER TEMPLATE WHO/KIND…` or
`… NAME test TEST…`.

What becomes of a mutant. FOLDER: of a PostgreSQL that runs; TEMPLATE: a database in it with its schema.
Exits with 1 if it was caught, with 0 if it survived; a simulation prints the seed and what it found as JSON.
Without arguments, the mutants are listed.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.mutants import ALL, NONE


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("\n".join(f"{mutant.name:32} {mutant.does}" for mutant in ALL))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name, how, *rest = arguments
    next(mutant for mutant in (NONE, *ALL) if mutant.name == name).infect()
    if how == "test":
        return _test(rest)
    folder, template, *seeds = rest
    if how == "die":
        return _die(seeds, folder=Path(folder), template=template)
    return _simulate(map(int, seeds), folder=Path(folder), template=template)


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


def _die(kinds: Sequence[str], *, folder: Path, template: str) -> int:
    from tests.mutation.ground import Ground
    from tests.simulation.points import count, play
    from tests.simulation.run import arena_on

    logging.disable(logging.CRITICAL)
    with arena_on(Ground(folder, template).server(), template=template) as arena:
        points, _ = count(arena)
        for point in [each for each in points if f"{each.who}/{each.kind}" in kinds and not each.power]:
            if findings := play(point, database=arena).findings:
                print(json.dumps({"seed": str(point), "found": findings[0]}), flush=True)
                return 1
    return 0


def _test(tests: Sequence[str]) -> int:
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
