from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.ids import BackendId
from scheduler.policies.least_predicted_wait import EXPLORERS, choose
from scheduler.policies.model import Candidate, Choice, NoCandidate, NoCandidateReason, Standing

draws = st.floats(min_value=0, max_value=1, exclude_max=True)
works = st.floats(min_value=1, max_value=1e6)


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    capacities = draw(st.lists(st.integers(1, 64), max_size=8))
    return [
        Candidate(
            BackendId(f"bck_{i}"),
            draw(st.sampled_from(Standing)),
            draw(st.integers(0, capacity)),
            capacity,
            draw(st.floats(0, 1e6)),
            draw(st.none() | st.floats(0.01, 1e4)),
            draw(st.integers(1, 10)),
        )
        for i, capacity in enumerate(capacities)
    ]


def candidate(name: str, **changes: object) -> Candidate:
    plain = Candidate(BackendId(name), Standing.READY, 0, 8, 0.0, 10.0, 1)
    return plain._replace(**changes)


def chosen(candidates: list[Candidate], *, work: float = 100, draw: float = 0.0) -> str:
    choice = choose(candidates, work, draw=draw)
    assert isinstance(choice, Choice)
    return choice.backend_id


@given(fleets(), works, draws)
def test_only_a_backend_that_is_in_and_has_room_is_chosen(
    fleet: list[Candidate], work: float, draw: float
) -> None:
    usable = [c for c in fleet if c.standing is not Standing.OUT and c.in_flight < c.capacity]
    choice = choose(fleet, work, draw=draw)
    if not usable:
        assert isinstance(choice, NoCandidate)
        anyone_in = any(c.standing is not Standing.OUT for c in fleet)
        assert choice.reason is (NoCandidateReason.ALL_FULL if anyone_in else NoCandidateReason.NONE_USABLE)
        assert (choice.drain_ms is not None) == anyone_in
        return
    assert isinstance(choice, Choice)
    best = min(c.standing for c in usable)
    assert set(choice.scores) == {c.backend_id for c in usable if c.standing is best}
    assert choice.predicted_wait_ms == choice.scores[choice.backend_id] == min(choice.scores.values())


@given(fleets(), works, draws, st.randoms(use_true_random=False))
def test_the_order_of_candidates_changes_no_score(
    fleet: list[Candidate], work: float, draw: float, random
) -> None:
    shuffled = fleet[:]
    random.shuffle(shuffled)
    one, other = choose(fleet, work, draw=draw), choose(shuffled, work, draw=draw)
    if isinstance(one, NoCandidate):
        assert one == other
    else:
        assert isinstance(other, Choice)
        assert one.scores == other.scores


@given(fleets(), works, draws, st.floats(1, 1e6), st.data())
def test_more_load_never_attracts(
    fleet: list[Candidate], work: float, draw: float, extra: float, data: st.DataObject
) -> None:
    before = choose(fleet, work, draw=draw)
    if isinstance(before, NoCandidate):
        return
    i = data.draw(st.integers(0, len(fleet) - 1))
    if fleet[i].backend_id == before.backend_id:
        return
    loaded = fleet[:]
    loaded[i] = fleet[i]._replace(pending_work=fleet[i].pending_work + extra)
    after = choose(loaded, work, draw=draw)
    assert isinstance(after, Choice)
    assert after.backend_id != fleet[i].backend_id
    assert after.predicted_wait_ms == before.predicted_wait_ms


@given(st.integers(2, 7))
def test_ties_are_broken_evenly(count: int) -> None:
    fleet = [candidate(f"bck_{i}") for i in range(count)]
    steps = count * 100
    picked = Counter(chosen(fleet, draw=(k + 0.5) / steps) for k in range(steps))
    assert set(picked.values()) == {100}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"ms_per_work": 5.0}, {"ms_per_work": 50.0}),
        ({"pending_work": 10.0}, {"pending_work": 500.0}),
        ({"pending_work": 500.0, "capacity": 64}, {"pending_work": 500.0, "capacity": 4}),
        ({"weight": 3}, {"weight": 1}),
        ({"standing": Standing.READY, "pending_work": 1e6}, {"standing": Standing.UNPROVEN}),
        ({"standing": Standing.UNPROVEN}, {"standing": Standing.LAST_RESORT}),
        ({"ms_per_work": 5.0, "pending_work": 4000.0, "in_flight": 7}, {"ms_per_work": 100.0}),
    ],
)
def test_the_faster_emptier_larger_preferred_and_more_trusted_one_wins(
    better: dict[str, object], worse: dict[str, object]
) -> None:
    a, b = candidate("a", **better), candidate("b", **worse)
    assert chosen([a, b]) == chosen([b, a]) == "a"


def test_a_backend_of_unknown_speed_is_tried_but_only_by_a_few_at_once() -> None:
    known = [candidate("fast", ms_per_work=10.0, pending_work=400.0), candidate("slow", ms_per_work=200.0)]
    assert chosen([*known, candidate("new", ms_per_work=None)]) == "new"
    busy = candidate("new", ms_per_work=None, in_flight=EXPLORERS, pending_work=100.0)
    assert chosen([*known, busy]) == "fast"


def test_a_full_trusted_backend_gives_way_to_an_unproven_one() -> None:
    full = candidate("full", in_flight=8)
    assert chosen([full, candidate("new", standing=Standing.UNPROVEN)]) == "new"


def test_a_full_fleet_says_when_it_will_have_room() -> None:
    none = choose([candidate("a", in_flight=8, pending_work=800.0)], 10, draw=0)
    assert none == NoCandidate(NoCandidateReason.ALL_FULL, 10.0 * 800 / 8 / 8)
