"""What a request asks of the fleet, and what each try at a backend came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.errors import ConnectFailed, EngineError, FirstTokenTimeout
from app.core.ids import BackendId, DeploymentId, ModelId, RequestId


@dataclass(frozen=True, slots=True)
class Demand:
    """One request as the scheduler sees it: sizes and a fairness key, no tenant, no content.

    prompt_tokens_bound: an upper bound (bytes + template is enough).   max_output_tokens: of all
    choices together.   fairness_key: opaque; whoever shares it shares one turn in a queue.
    """

    request_id: RequestId
    deployment_id: DeploymentId
    model_id: ModelId
    prompt_tokens_bound: int
    max_output_tokens: int
    streamed: bool = True
    fairness_key: str = ""


class AttemptOutcome(StrEnum):
    """How one try at one backend ended."""

    RUNNING = "running"
    DELIVERED = "delivered"
    REFUSED = "refused"
    """4xx: the request's own fault; says nothing of the backend."""
    OVERLOADED = "overloaded"
    """503 or 429: no room there now."""
    FAULTED = "faulted"
    """Any other 5xx."""
    UNREACHABLE = "unreachable"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 - a token of text
    BROKEN = "broken"
    TIMED_OUT = "timed_out"
    """The time for the whole answer was up while its bytes still came: no fault of the backend's."""
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Attempt:
    """One try at one backend, with the numbers by which it was chosen.

    started_ms: Unix time.   scores: predicted wait in ms of every backend that could be chosen.
    status: the engine's, None before its head came.   error_code: of the `EngineError`, if any.
    """

    backend_id: BackendId
    started_ms: int
    predicted_wait_ms: float
    scores: Mapping[BackendId, float] = field(default_factory=dict)
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    status: int | None = None
    error_code: str | None = None
    first_byte_ms: float | None = None
    duration_ms: float | None = None


def outcome_of_status(status: int) -> AttemptOutcome:
    """How an attempt ended whose answer of this status came to its end."""
    if status < 400:
        return AttemptOutcome.DELIVERED
    if status in (429, 503):
        return AttemptOutcome.OVERLOADED
    return AttemptOutcome.FAULTED if status >= 500 else AttemptOutcome.REFUSED


def outcome_of_error(error: EngineError) -> AttemptOutcome:
    """How an attempt ended that got no whole answer."""
    if isinstance(error, ConnectFailed):
        return AttemptOutcome.UNREACHABLE
    if isinstance(error, FirstTokenTimeout):
        return AttemptOutcome.FIRST_TOKEN_TIMEOUT
    if error.facts.get("reason") == "total deadline" and error.facts.get("bytes_received"):
        return AttemptOutcome.TIMED_OUT
    return AttemptOutcome.BROKEN
