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

from app.core.ids import BackendId
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
    Returns NoCandidate when all are full or out. Never raises. O(len(candidates)).   Source: ADR-0007.
    """
    standing = Standing.OUT
    best: list[Candidate] = []
    for candidate in candidates:
        if candidate.standing <= standing and candidate.in_flight < candidate.capacity:
            if candidate.standing < standing:
                standing, best = candidate.standing, []
            best.append(candidate)
    if standing is Standing.OUT:
        return _no_candidate(candidates)
    scores: dict[BackendId, float] = {}
    guesses: tuple[float, float] | None = None
    for candidate in best:
        ms_per_work = candidate.ms_per_work
        if ms_per_work is None:
            guesses = guesses or _extremes(candidates)
            ms_per_work = guesses[candidate.in_flight >= explorers]
        wait_ms = ms_per_work * (candidate.pending_work / candidate.capacity + work) / candidate.weight
        scores[candidate.backend_id] = wait_ms
    least = min(scores.values())
    tied = [backend_id for backend_id, wait_ms in scores.items() if wait_ms == least]
    return Choice(tied[int(draw * len(tied))], least, scores)


def _extremes(candidates: Sequence[Candidate]) -> tuple[float, float]:
    """The fastest and the slowest of the known speeds: what to assume of a backend nobody knows."""
    known = [c.ms_per_work for c in candidates if c.ms_per_work is not None]
    return (min(known), max(known)) if known else (PRIOR_MS_PER_WORK, PRIOR_MS_PER_WORK)


def _no_candidate(candidates: Sequence[Candidate]) -> NoCandidate:
    full = [c for c in candidates if c.standing is not Standing.OUT]
    if not full:
        return NoCandidate(NoCandidateReason.NONE_USABLE)
    # One of `in_flight` requests ends, on average, after its even share of the pending work.
    slowest = _extremes(full)[1]
    drains_ms = [
        (c.ms_per_work or slowest) * c.pending_work / max(c.in_flight, 1) / max(c.capacity, 1) for c in full
    ]
    return NoCandidate(NoCandidateReason.ALL_FULL, min(drains_ms))
