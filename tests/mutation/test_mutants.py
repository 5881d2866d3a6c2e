"""The mutants fit the code, and what is to catch them does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.mutation.ground import Ground, open_ground
from tests.mutation.hunt import Hunter
from tests.mutation.mutants import ALL, REDUCED
from tests.mutation.patch import ROOT, Mutant


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_still_fits_the_code_and_is_one_of_its_own(mutant: Mutant) -> None:
    for module in mutant.modules:
        faulty = ast.parse(mutant.source_of(module))
        sound = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assert ast.dump(faulty) != ast.dump(sound)


@pytest.mark.parametrize("test", sorted({test for mutant in ALL for test in mutant.tests}))
def test_what_is_to_catch_a_mutant_is_a_test_that_there_is(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_there_are_enough_mutants_and_each_has_its_name() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 12


@pytest.fixture
def ground() -> Iterator[Ground]:
    with open_ground() as opened:
        yield opened


@pytest.mark.timeout(600)
async def test_a_few_mutants_are_caught_by_seeds_which_the_product_passes(ground: Ground) -> None:
    mutants = [mutant for mutant in ALL if mutant.name in REDUCED]
    verdicts = await Hunter(ground, most_seed=20, runs=4).hunt_all(mutants)
    assert {verdict.name: verdict.caught_by for verdict in verdicts} == dict.fromkeys(REDUCED, "simulation")
