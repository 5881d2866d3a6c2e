"""Which outcome an error means, and what the client is told of it. Pure."""

from __future__ import annotations

import msgspec

from app.core.errors import (
    ConnectFailed,
    EngineError,
    EngineOverloaded,
    EngineRefused,
    FirstTokenTimeout,
    Rejected,
    RejectReason,
    SteelyardError,
    StreamBroken,
)
from app.gateway.errors import REFUSED_BY_REQUEST, engine_message
from app.gateway.model import Headers
from app.gateway.ports import Dispatch
from billing.metering.model import Outcome
from scheduler.model import AttemptOutcome

_OVERLOADED = frozenset((429, 503))
_NEVER_WORKED = frozenset((AttemptOutcome.UNREACHABLE, AttemptOutcome.OVERLOADED))
JOURNAL_FAILED = Rejected(
    RejectReason.JOURNAL_UNWRITABLE,
    "The request could not be recorded, so its answer is withheld. It is not billed.",
    status=503,
    retry_after_s=1.0,
)


def engine_refusal(status: int, body: bytes, *, headers: Headers) -> SteelyardError:
    """What an engine's error answer means for the client.

    It meant the request: the engine's own message and status. It is overloaded: try again later.
    Anything else is a fault of the engine or of how it is set up, and no business of the client.
    """
    if status == 503:
        return EngineOverloaded(
            "The engine is overloaded.", engine_status=status, retry_after_s=_retry_after_s(headers)
        )
    if status not in REFUSED_BY_REQUEST:
        return EngineError("The engine failed to answer.", engine_status=status)
    message, param = engine_message(body)
    refused = EngineRefused(message, param=param, engine_status=status)
    refused.status = status
    if status == 429:
        refused.facts["retry_after_s"] = _retry_after_s(headers)
    return refused


def stream_failure(frame: bytes) -> EngineError:
    """The error that an engine wrote into a stream of status 200; its own message if it meant the request."""
    error = StreamBroken("The engine failed while it answered.")
    _, _, data = frame.partition(b"data:")
    try:
        inner = msgspec.json.decode(data).get("error", {})
    except (msgspec.MsgspecError, AttributeError):
        return error
    if isinstance(inner, dict) and inner.get("code") in REFUSED_BY_REQUEST:
        error.public_message = engine_message(data)[0]
    return error


def outcome_of(error: SteelyardError) -> Outcome:
    """A total or first-token deadline is `timed_out`; an engine that fell silent or broke has failed."""
    if isinstance(error, EngineRefused):
        return Outcome.REFUSED_BY_ENGINE
    if isinstance(error, FirstTokenTimeout) or error.facts.get("reason") == "total deadline":
        return Outcome.TIMED_OUT
    return Outcome.ENGINE_FAILED


def was_untouched(error: SteelyardError, dispatch: Dispatch | None) -> bool:
    """True if no engine can have worked on the request: its usage is a known zero."""
    if isinstance(error, (EngineRefused, ConnectFailed)) or dispatch is None or not dispatch.attempts:
        return True
    status = error.facts.get("engine_status")
    if isinstance(status, int) and (300 <= status < 500 or status in _OVERLOADED):
        return True  # it refused, or sent elsewhere, before any work
    return all(attempt.outcome in _NEVER_WORKED for attempt in dispatch.attempts)


def _retry_after_s(headers: Headers) -> float:
    given = next((value for name, value in headers if name == b"retry-after"), b"")
    return float(given) if given.isdigit() and len(given) < 6 else 1.0
