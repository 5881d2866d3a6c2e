"""What identity and its neighbours say when a thing isn't there or isn't so."""

from __future__ import annotations

from typing import NoReturn

from app.core.errors import Rejected, RejectReason


def not_found(kind: str, object_id: str) -> NoReturn:
    """Raise the 404 for a thing that doesn't exist or is beyond the caller's reach: which, isn't told."""
    raise Rejected(
        RejectReason.NOT_FOUND,
        f"There is no {kind} {object_id[:100]!r}.",
        status=404,
        kind=kind,
        id=object_id[:100],
    )


def invalid(message: str, *, param: str) -> NoReturn:
    """Raise the 400 for a parameter that can't be."""
    raise Rejected(RejectReason.PARAMETER_INVALID, message, status=400, param=param)
