"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code", …facts}}`. Pure.

`type` is the word that OpenAI's own API and SDKs use; `code` is our reason, the same in log and metrics.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from app.core.errors import Rejected, RejectReason, SteelyardError
from app.core.ids import RequestId
from app.gateway.model import Headers
from billing.metering.convert import Report

_TYPES = {
    RejectReason.KEY_MISSING: "invalid_api_key",
    RejectReason.KEY_UNKNOWN: "invalid_api_key",
    RejectReason.KEY_REVOKED: "invalid_api_key",
    RejectReason.KEY_EXPIRED: "invalid_api_key",
    RejectReason.SCOPE_MISSING: "permission_denied",
    RejectReason.TENANT_SUSPENDED: "permission_denied",
    RejectReason.PROJECT_ARCHIVED: "permission_denied",
    RejectReason.MODEL_NOT_ALLOWED: "permission_denied",
    RejectReason.MODEL_UNKNOWN: "model_not_found",
    RejectReason.BALANCE_TOO_LOW: "insufficient_quota",
    RejectReason.BUDGET_EXHAUSTED: "insufficient_quota",
    RejectReason.REQUESTS_PER_MINUTE: "rate_limit_exceeded",
    RejectReason.TOKENS_PER_MINUTE: "rate_limit_exceeded",
    RejectReason.TOO_MANY_CONCURRENT: "rate_limit_exceeded",
    RejectReason.QUEUE_FULL: "rate_limit_exceeded",
}
_SERVER, _CLIENT = "server_error", "invalid_request_error"
_SHOWN_FACTS = (
    *("scope", "window", "unit", "allowance_id", "model_id", "resets_at"),
    *("available", "needed", "currency"),
)
MAX_ENGINE_MESSAGE = 2000
REFUSED_BY_REQUEST = frozenset((400, 408, 409, 413, 415, 422, 429))
"""Statuses by which an engine means the request. Another 4xx means how the engine is set up: that is ours."""


def error_body(
    error: SteelyardError, request_id: RequestId, *, billed_tokens: int | None = None
) -> dict[str, Any]:
    """The error object of an answer or of an SSE event; facts only where they are meant to be shown.

    billed_tokens: of a request that was admitted; 0 where the error costs nothing.
    """
    body: dict[str, Any] = {
        "message": error.public_message,
        "type": _type(error),
        "param": error.facts.get("param"),
        "code": error.code,
        "request_id": request_id,
    }
    if billed_tokens is not None:
        body["billed_tokens"] = billed_tokens
    if isinstance(error, Rejected):
        named = {"limit": error.limit, "observed": error.observed, "retry_after_s": error.retry_after_s}
        body.update((name, value) for name, value in named.items() if value is not None)
        body.update((fact, error.facts[fact]) for fact in _SHOWN_FACTS if fact in error.facts)
    return {"error": body}


def kept_facts(refusal: Rejected) -> dict[str, str] | None:
    """What is recorded of a refusal beside limit and observed: what the caller was shown, as texts."""
    facts = {name: str(refusal.facts[name]) for name in _SHOWN_FACTS if name in refusal.facts}
    return facts or None


def error_json(error: SteelyardError, request_id: RequestId, *, billed_tokens: int | None = None) -> bytes:
    return msgspec.json.encode(error_body(error, request_id, billed_tokens=billed_tokens))


def error_event(
    error: SteelyardError, request_id: RequestId, *, billed_tokens: int, report: Report | None = None
) -> bytes:
    """The last event of a stream that broke, with the usage so far. No `[DONE]` follows it."""
    body = error_body(error, request_id, billed_tokens=billed_tokens)
    if report is not None:
        body["usage"] = usage_json(report)
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def usage_json(report: Report) -> dict[str, Any]:
    """A report in the form of OpenAI's `usage`."""
    prompt, completion = report.prompt or 0, report.completion or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": report.cached},
    }


def error_headers(error: SteelyardError) -> Headers:
    """Retry-After in whole seconds where waiting helps, Allow where the method was wrong.

    `x-should-retry` tells OpenAI's SDKs not to try again by themselves what their status would have them.
    """
    headers: Headers = []
    retry_after_s = error.retry_after_s if isinstance(error, Rejected) else error.facts.get("retry_after_s")
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_s))))
    if error.facts.get("should_retry") is False:
        headers.append((b"x-should-retry", b"false"))
    if isinstance(error, Rejected):
        headers += error.headers
    if "allow" in error.facts:
        headers.append((b"allow", str(error.facts["allow"]).encode()))
    return headers


class _EngineErrorBody(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None


class _EngineErrorWire(msgspec.Struct):
    error: _EngineErrorBody | str | None = None
    message: str | None = None
    detail: str | None = None


def engine_message(body: bytes) -> tuple[str, str | None]:
    """(message, param) of an engine's error body, whichever of the known shapes it has."""
    try:
        wire = msgspec.json.decode(body, type=_EngineErrorWire)
    except (msgspec.MsgspecError, RecursionError):
        return "The engine refused the request.", None
    inner = wire.error
    if isinstance(inner, _EngineErrorBody):
        return (inner.message or "The engine refused the request.")[:MAX_ENGINE_MESSAGE], inner.param
    return (inner or wire.message or wire.detail or "The engine refused the request.")[
        :MAX_ENGINE_MESSAGE
    ], None


def _type(error: SteelyardError) -> str:
    if isinstance(error, Rejected) and error.reason in _TYPES:
        return _TYPES[error.reason]
    if error.status == 429:
        return "rate_limit_exceeded"
    return _SERVER if error.status >= 500 else _CLIENT
