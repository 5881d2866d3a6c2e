"""Small runs in which somebody dies at every point there is: here a few of each kind, in a slow test all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.database import Server
from tests.mutation.ground import Ground, open_ground
from tests.simulation.arena import Arena
from tests.simulation.jobs import Ran, run_all
from tests.simulation.outcome import Sum
from tests.simulation.points import PLANS, Point, count, one_of_each, play
from tests.simulation.run import arena_on

pytestmark = pytest.mark.filterwarnings("ignore:The garbage collector:sqlalchemy.exc.SAWarning")


@pytest.fixture(scope="module")
def arena(database_server: Server, _template: str) -> Iterator[Arena]:
    with arena_on(database_server, template=_template) as opened:
        yield opened


@pytest.fixture(scope="module")
def points(arena: Arena) -> list[Point]:
    counted, undisturbed = count(arena)
    assert undisturbed.ok, undisturbed.failed
    assert undisturbed.numbers["delivered_to_the_end"] >= 2
    return counted


@pytest.mark.timeout(300)
def test_no_law_breaks_at_a_point_of_each_kind(arena: Arena, points: list[Point]) -> None:
    failed: dict[str, list[str]] = {}
    for point in one_of_each(points):
        outcome = play(point, database=arena)
        if not outcome.ok:
            failed[str(point)] = outcome.findings
    assert not failed


def test_a_point_is_at_every_step_write_sync_and_statement(points: list[Point]) -> None:
    kinds = {(point.who, point.kind) for point in points}
    assert kinds >= {
        *(("gateway-0", kind) for kind in ("step", "write", "torn_first", "torn_last", "written", "full")),
        *(("gateway-0", kind) for kind in ("sync", "synced", "call", "sent", "called", "disk")),
        *(("settler", kind) for kind in ("step", "call", "sent", "called", "disk")),
        *(("worker", kind) for kind in ("step", "call", "sent", "called")),
    }


def test_a_point_is_found_again_by_its_name(points: list[Point]) -> None:
    assert [Point.parse(str(point)) for point in points] == points
    with pytest.raises(ValueError, match="no point"):
        Point.parse("nowhere/gateway-0/step/1")


def test_a_point_that_nobody_reaches_is_a_finding(arena: Arena) -> None:
    outcome = play(Point(next(iter(PLANS)), "gateway-0", "step", power=False, number=10**6), database=arena)
    assert outcome.findings == [f"0 died at {next(iter(PLANS))}/gateway-0/step/1000000"]


@pytest.fixture
def ground() -> Iterator[Ground]:
    with open_ground() as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_law_breaks_at_any_point(ground: Ground, points: list[Point]) -> None:
    sum_ = Sum()

    def on_ran(ran: Ran) -> None:
        sum_.add(ran.again, ran.numbers, ran.findings)

    await run_all([str(point) for point in points], ground=ground, jobs=2, on_ran=on_ran)
    assert sum_.ok, sum_.failed
    assert sum_.numbers["deaths"] == len(points)
