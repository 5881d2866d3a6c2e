"""One tree of exceptions, and the one enum of reasons for which a caller is refused.

Expected outcomes are values; these are raised when a call can't return what it promises. `Rejected`
is our answer to a caller and carries the numbers that explain it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class RejectReason(StrEnum):
    """Why a caller is refused: used by the API body, the log, metric labels, console and CLI."""

    BODY_INVALID = "body_invalid"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    PARAMETER_INVALID = "parameter_invalid"
    ROUTE_UNKNOWN = "route_unknown"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    KEY_MISSING = "key_missing"
    KEY_UNKNOWN = "key_unknown"
    KEY_REVOKED = "key_revoked"
    KEY_EXPIRED = "key_expired"
    SCOPE_MISSING = "scope_missing"
    TENANT_SUSPENDED = "tenant_suspended"
    PROJECT_ARCHIVED = "project_archived"
    MODEL_UNKNOWN = "model_unknown"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    PRICE_MISSING = "price_missing"
    CONTEXT_TOO_LONG = "context_too_long"
    BALANCE_TOO_LOW = "balance_too_low"
    BUDGET_EXHAUSTED = "budget_exhausted"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOO_MANY_CONCURRENT = "too_many_concurrent"
    OUTPUT_LIMIT = "output_limit"
    TASK_INVALID = "task_invalid"
    TASK_CLOSED = "task_closed"
    TASK_UNAVAILABLE = "task_unavailable"
    LIMITS_UNAVAILABLE = "limits_unavailable"
    QUEUE_FULL = "queue_full"
    NO_HEALTHY_BACKEND = "no_healthy_backend"
    JOURNAL_UNWRITABLE = "journal_unwritable"
    SHUTTING_DOWN = "shutting_down"
    NOT_FOUND = "not_found"


class SteelyardError(Exception):
    """Root of all our errors.

    code: stable, for programs.   status: the HTTP status it maps to.   retryable: whether the same
    call may succeed later unchanged.   public_message: safe to show to the caller.   facts: numbers
    and ids that explain it; never a secret.
    """

    code = "internal_error"
    status = 500
    retryable = False

    def __init__(self, public_message: str, **facts: Any) -> None:
        super().__init__(public_message)
        self.public_message = public_message
        self.facts = facts


class Rejected(SteelyardError):
    """Our answer to a caller who asked for something we don't give."""

    def __init__(
        self,
        reason: RejectReason,
        public_message: str,
        *,
        status: int,
        limit: str | None = None,
        observed: str | None = None,
        retry_after_s: float | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(public_message, **facts)
        self.reason = reason
        self.code = reason.value
        self.status = status
        self.limit = limit
        self.observed = observed
        self.retry_after_s = retry_after_s
        self.retryable = retry_after_s is not None
        self.headers: list[tuple[bytes, bytes]] = []
        """More headers of the answer, such as where rates stand."""


class EngineError(SteelyardError):
    """An engine did not give what was asked of it."""

    code = "engine_error"
    status = 502


class ConnectFailed(EngineError):
    """No connection, or it ended before a byte of the request was read: always safe elsewhere."""

    code = "engine_unreachable"
    status = 503
    retryable = True


class FirstTokenTimeout(EngineError):
    """The first byte of the body did not come in time."""

    code = "engine_first_token_timeout"
    status = 504
    retryable = True


class EngineRefused(EngineError):
    """The engine answered with an error status."""

    code = "engine_refused"


class EngineOverloaded(EngineError):
    """The engine, or every one that could be tried, said that it is too busy."""

    code = "engine_overloaded"
    status = 503
    retryable = True


class StreamBroken(EngineError):
    """The answer ended before its end: connection lost, malformed, idle for too long."""

    code = "engine_stream_broken"


class Conflict(SteelyardError):
    """The state of things forbids it: a reused idempotency key, a stale version, a closed period."""

    code = "conflict"
    status = 409


class DependencyError(SteelyardError):
    """The database, the broker or a provider can't be reached."""

    code = "dependency_unavailable"
    status = 503
    retryable = True


class InvariantViolation(SteelyardError):
    """A law of the ledger broke: stop that tenant's posting, alert, never retry."""

    code = "invariant_violation"
