"""The default policy: send a request where it is predicted to wait least.

A backend of capacity `c` that needs `s` ms for one unit of work shares `s` out over `c` requests at
once, so the work `W` it has reserved drains in about `W·s/c`, and the request itself then takes `w·s`:
`wait = s·(W/c + w) / weight`. `W` is counted from our own reservations, taken at selection, so a burst
that no metric has seen yet already counts. `s` is learned from what finished, which puts a
fast card, a slow card and a CPU on one scale.

A backend of unknown speed is taken to be as fast as the fastest that is known, so it gets tried; but
only for `EXPLORERS` requests at a time, after which it is taken to be as slow as the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.policies.model import Candidate, Choice, NoCandidate, NoCandidateReason, Standing

EXPLORERS = 2
"""Requests that may be in flight at once at a backend whose speed nobody knows."""
PRIOR_MS_PER_WORK = 20.0
"""Assumed while no backend's speed is known: the order of a large model's time per output token."""


def choose(
    candidates: Sequence[Candidate], work: float, *, draw: float, explorers: int = EXPLORERS
) -> Choice | NoCandidate:
    """Pick the backend with the least predicted wait among the best trusted that have room.

    work: of the request, in output-token equivalents, ≥ 0.   candidates: order is irrelevant.
    draw: uniform in [0, 1), breaks ties evenly.   explorers: `EXPLORERS`, but for a study.
    Returns NoCandidate when all are full or out. Never raises. O(len(candidates)).
    """
    open_ones = [c for c in candidates if c.standing is not Standing.OUT and c.in_flight < c.capacity]
    if not open_ones:
        return _no_candidate(candidates)
    standing = min(c.standing for c in open_ones)
    if standing is not Standing.READY or len(open_ones) > 1:
        open_ones = [c for c in open_ones if c.standing is standing]
    fastest, slowest = _known_speeds(candidates)
    scores = {
        c.backend_id: _wait_ms(c, work, ms_per_work=_speed(c, fastest, slowest, explorers=explorers))
        for c in open_ones
    }
    least = min(scores.values())
    tied = [backend_id for backend_id, score in scores.items() if score == least]
    return Choice(tied[int(draw * len(tied))], least, scores)


def _wait_ms(candidate: Candidate, work: float, *, ms_per_work: float) -> float:
    return ms_per_work * (candidate.pending_work / candidate.capacity + work) / candidate.weight


def _known_speeds(candidates: Sequence[Candidate]) -> tuple[float, float]:
    known = [c.ms_per_work for c in candidates if c.ms_per_work is not None]
    return (min(known), max(known)) if known else (PRIOR_MS_PER_WORK, PRIOR_MS_PER_WORK)


def _speed(candidate: Candidate, fastest: float, slowest: float, *, explorers: int) -> float:
    if candidate.ms_per_work is not None:
        return candidate.ms_per_work
    return fastest if candidate.in_flight < explorers else slowest


def _no_candidate(candidates: Sequence[Candidate]) -> NoCandidate:
    full = [c for c in candidates if c.standing is not Standing.OUT]
    if not full:
        return NoCandidate(NoCandidateReason.NONE_USABLE)
    fastest, slowest = _known_speeds(full)
    # One of `in_flight` requests ends, on average, after its even share of the pending work.
    return NoCandidate(
        NoCandidateReason.ALL_FULL,
        min(
            _speed(c, fastest, slowest, explorers=0)
            * c.pending_work
            / max(c.in_flight, 1)
            / max(c.capacity, 1)
            for c in full
        ),
    )
