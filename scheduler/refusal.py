"""The refusal a caller gets when no backend can take the request, with an honest Retry-After. Pure."""

from __future__ import annotations

from app.core.errors import Rejected, RejectReason
from scheduler.policies.model import NoCandidate, NoCandidateReason

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0


def rejected(none: NoCandidate, *, reopens_s: float) -> Rejected:
    """Our answer: 503 if no backend is usable, 429 if all are full.

    reopens_s: when an unusable backend is looked at again. A full one is predicted to have room after
    `none.drain_ms`. Either way the advice stays within a second and a minute.
    """
    if none.reason is NoCandidateReason.NONE_USABLE:
        return Rejected(
            RejectReason.NO_HEALTHY_BACKEND,
            "No healthy backend serves this model at the moment.",
            status=503,
            retry_after_s=_bounded(reopens_s),
        )
    return Rejected(
        RejectReason.QUEUE_FULL,
        "All backends of this model are busy.",
        status=429,
        retry_after_s=_bounded((none.drain_ms or 0.0) / 1000),
    )


def _bounded(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
