"""Values as text for people: the only formatters of the console. Unknown is a dash, never 0."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from app.core.money import format_picos

UNKNOWN = "–"
_WORDS = {"ttft_ms": "first token ms"}


def amount(picos: int | None, currency: str) -> str:
    """An exact amount with its currency: `0.00004 USD`."""
    return UNKNOWN if picos is None else f"{format_picos(picos)} {currency}"


def count(value: int | None) -> str:
    """A whole number in groups of three digits, parted by narrow spaces."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", "\u202f")


def moment(at: datetime | str | None, zone: str) -> str:
    """A point in time in a zone, to the second: `2026-11-30 21:04:05`."""
    if at is None:
        return UNKNOWN
    known = datetime.fromisoformat(at) if isinstance(at, str) else at
    return known.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


def duration(milliseconds: int | None) -> str:
    """A length of time: `840 ms`, `12.5 s`."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds}.{rest // 100} s"


def words(name: str) -> str:
    """A stable code as words: `client_cancelled` → `client cancelled`."""
    return _WORDS.get(name) or name.replace("_", " ")
