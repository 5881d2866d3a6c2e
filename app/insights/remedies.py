"""What a refused caller can do about it, one sentence for each reason."""

from __future__ import annotations

from app.core.errors import RejectReason

REMEDIES: dict[RejectReason, str] = {
    RejectReason.BODY_INVALID: "Send one JSON object in UTF-8, as the API reference shows.",
    RejectReason.BODY_TOO_LARGE: "Send less: the gateway's body limit is a setting of its operator.",
    RejectReason.BODY_TIMEOUT: "Send the whole body at once; the connection was too slow.",
    RejectReason.PARAMETER_INVALID: "Correct the parameter that the message names.",
    RejectReason.ROUTE_UNKNOWN: "Check the path and its version prefix.",
    RejectReason.METHOD_NOT_ALLOWED: "Use a method from the Allow header.",
    RejectReason.KEY_MISSING: "Send the API key: Authorization: Bearer sk-sy-…",
    RejectReason.KEY_UNKNOWN: "Use a key of this installation, whole and unchanged.",
    RejectReason.KEY_REVOKED: "Create a new key; a revoked one stays revoked.",
    RejectReason.KEY_EXPIRED: "Create a new key, or use the successor of a rotated one.",
    RejectReason.SCOPE_MISSING: "Use a key or a role that has the scope.",
    RejectReason.TENANT_SUSPENDED: "Ask the operator to resume the tenant.",
    RejectReason.PROJECT_ARCHIVED: "Revive the project or use a key of another.",
    RejectReason.MODEL_UNKNOWN: "Ask for a model that /v1/models lists.",
    RejectReason.MODEL_NOT_ALLOWED: "Use a key that may use the model.",
    RejectReason.PRICE_MISSING: "The operator has to publish a full price of the model in this currency.",
    RejectReason.CONTEXT_TOO_LONG: "Shorten the prompt or ask for fewer output tokens.",
    RejectReason.BALANCE_TOO_LOW: "Top up the wallet, or ask for fewer output tokens: all of them are held.",
    RejectReason.BUDGET_EXHAUSTED: "Wait for the next period or have the budget raised.",
    RejectReason.REQUESTS_PER_MINUTE: "Wait as long as Retry-After says, or have the limit raised.",
    RejectReason.TOKENS_PER_MINUTE: "Wait as long as Retry-After says, or have the limit raised.",
    RejectReason.TOO_MANY_CONCURRENT: "Wait for a running request to end, or have the limit raised.",
    RejectReason.OUTPUT_LIMIT: "Ask for fewer output tokens, or have the ceiling raised.",
    RejectReason.TASK_INVALID: "Name the task and its budget as its first request did.",
    RejectReason.TASK_CLOSED: "Use another task: a closed one takes no more requests.",
    RejectReason.TASK_UNAVAILABLE: "Try again shortly: new tasks need the database, and have a rate.",
    RejectReason.LIMITS_UNAVAILABLE: "Try again as Retry-After says; the operator sees to the database.",
    RejectReason.QUEUE_FULL: "Try again as Retry-After says; the engines are busy.",
    RejectReason.NO_HEALTHY_BACKEND: "Try again shortly; the operator sees the fleet's state.",
    RejectReason.JOURNAL_UNWRITABLE: "Try again shortly; the gateway's disk needs its operator.",
    RejectReason.SHUTTING_DOWN: "Try again at once; another gateway answers.",
    RejectReason.NOT_FOUND: "Check the id.",
}


def remedy_for(reason: str) -> str:
    """The remedy for a recorded reason; for one of a newer version, a pointer to the message."""
    try:
        return REMEDIES[RejectReason(reason)]
    except ValueError:
        return "See the message."
