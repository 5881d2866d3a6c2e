"""The values that a policy reads and gives: all plain, so that a decision can be replayed and explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from app.core.ids import BackendId


class Standing(IntEnum):
    """How far a backend may be trusted with a request; the least value that has room wins."""

    READY = 0
    UNPROVEN = 1
    """Not probed yet or not lately, or it just said that it is overloaded."""
    LAST_RESORT = 2
    """Its breaker is open, yet the deployment has nothing better: used at reduced capacity."""
    OUT = 3
    """Draining, dead, or ejected while others stand."""


class Candidate(NamedTuple):
    """A backend at the moment of a choice.

    capacity: most requests it may have in flight.   pending_work: predicted work in flight, in
    output-token equivalents.   ms_per_work: learned time for one of them, None while unknown.
    weight: the operator's preference; twice the weight halves the predicted wait.
    """

    backend_id: BackendId
    standing: Standing
    in_flight: int
    capacity: int
    pending_work: float
    ms_per_work: float | None
    weight: int


class NoCandidateReason(StrEnum):
    ALL_FULL = "all_full"
    NONE_USABLE = "none_usable"


class Choice(NamedTuple):
    """The chosen backend, its predicted wait, and the predicted wait of all that could be chosen."""

    backend_id: BackendId
    predicted_wait_ms: float
    scores: Mapping[BackendId, float]


@dataclass(frozen=True, slots=True)
class NoCandidate:
    """Nothing can take the request.

    drain_ms: predicted time until the least loaded of the full ones has room; None if none is usable.
    """

    reason: NoCandidateReason
    drain_ms: float | None = None
