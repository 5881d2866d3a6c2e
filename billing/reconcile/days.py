"""The days of reconciliation: UTC, half-open."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta


def bounds(day: date) -> tuple[datetime, datetime]:
    """The UTC day as a half-open range."""
    begins = datetime.combine(day, time(), UTC)
    return begins, begins + timedelta(days=1)


def day_of(moment: datetime) -> date:
    """The UTC day of a moment."""
    return moment.astimezone(UTC).date()
