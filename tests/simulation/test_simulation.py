"""Whole runs under a seed: no law breaks, and a run can be repeated exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.database import Server
from tests.simulation.allowances import worst
from tests.simulation.arena import Arena
from tests.simulation.outcome import ZEROS, Sum
from tests.simulation.plan import Death, plan_of
from tests.simulation.run import arena_on, simulate

pytestmark = pytest.mark.filterwarnings("ignore:The garbage collector:sqlalchemy.exc.SAWarning")
_SEEDS = range(1, 9)
_CROWDED = 3


@pytest.fixture(scope="module")
def arena(database_server: Server, _template: str) -> Iterator[Arena]:
    with arena_on(database_server, template=_template) as opened:
        yield opened


@pytest.mark.timeout(300)
def test_no_law_breaks_whatever_dies(arena: Arena) -> None:
    sum_ = Sum()
    for seed in _SEEDS:
        outcome = simulate(seed, database=arena)
        sum_.add(str(seed), outcome.numbers(), outcome.findings)
    again = "".join(f"\npython -m tests.simulation --seed {seed} --trace" for seed in sum_.failed)
    assert sum_.ok, f"{sum_.failed}{again}"
    assert sum_.numbers["delivered_to_the_end"]
    assert sum_.numbers["deaths"]
    assert sum_.numbers["limited"]
    assert sum_.numbers["rated"]


def test_a_seed_is_the_same_run_each_time(arena: Arena) -> None:
    first, second = (simulate(_CROWDED, database=arena) for _ in range(2))
    assert first == second
    assert first.digest != simulate(_CROWDED + 1, database=arena).digest


@pytest.mark.parametrize("kind", ["step", "torn", "written", "sync", "synced", "call", "called"])
def test_a_gateway_may_die_at_any_moment(arena: Arena, kind: str) -> None:
    deaths = (Death("gateway-0", kind, 4, power=kind in ("written", "sync"), back_s=0.1),)
    outcome = simulate(20, database=arena, plan=replace(plan_of(20), calm=False, deaths=deaths))
    assert outcome.deaths == 1
    assert outcome.ok, outcome.findings


@pytest.mark.parametrize("number", [25, 40, 55])
def test_a_settler_may_die_in_the_middle_of_a_transaction(arena: Arena, number: int) -> None:
    deaths = tuple(Death("settler", kind, number, power=False, back_s=0.1) for kind in ("call", "called"))
    outcome = simulate(10, database=arena, plan=replace(plan_of(10), calm=False, deaths=deaths))
    assert outcome.deaths == 2
    assert outcome.ok, outcome.findings


def test_a_rate_is_weighed_by_an_exact_bucket() -> None:
    within = [(0.0, 4), (30.0, 1), (60.0, 1), (60.0, 2)]
    assert worst(within, burst=4, per_minute=4) == 0
    assert round(worst([*within, (60.0, 1)], burst=4, per_minute=4)) == 1


def test_every_count_of_what_must_not_be_is_compared() -> None:
    numbers = Sum().numbers
    assert set(ZEROS) <= numbers.keys()
    assert not any(numbers.values())
