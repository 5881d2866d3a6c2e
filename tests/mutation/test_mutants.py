"""The mutants fit the code, and what is to catch them does."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.mutants import ALL
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
