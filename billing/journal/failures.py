"""Tells a row that the database will always refuse from a database that is away for a while."""

from __future__ import annotations

from collections.abc import Iterator

from asyncpg import InterfaceError, PostgresError
from sqlalchemy.exc import DBAPIError

_POISON_CLASSES = ("22", "23")
"""SQLSTATE classes: data exception, integrity constraint violation."""
_POISON_TYPES = (ValueError, OverflowError)
"""What the driver, or a conversion before it, raises of a value that no column can hold."""
REFUSALS = (DBAPIError, PostgresError, InterfaceError, *_POISON_TYPES)
"""What posting raises, through SQLAlchemy or from the driver's own COPY."""


def is_repeat(error: BaseException) -> bool:
    """True if an event that was taken for new has been posted before."""
    names = {getattr(cause, "constraint_name", None) for cause in _causes(error)}
    return "usage_event_pkey" in names


def is_poison(error: BaseException) -> bool:
    """True if trying the same rows again must fail the same way; False asks for patience."""
    states = [state for cause in _causes(error) if isinstance(state := getattr(cause, "sqlstate", None), str)]
    if states:
        return states[0][:2] in _POISON_CLASSES
    return any(isinstance(cause, _POISON_TYPES) for cause in _causes(error))


def words(error: BaseException) -> str:
    """The last cause in one line, without the statement and its values."""
    *_, root = _causes(error)
    return f"{type(root).__name__}: {str(root).splitlines()[0] if str(root) else ''}"[:500]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, the driver's own last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__
