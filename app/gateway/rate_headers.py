"""`x-ratelimit-*` as OpenAI's: of requests and tokens the limit, what remains, when all is there again.

Source: platform.openai.com/docs/guides/rate-limits, "Rate limits in headers".
"""

from __future__ import annotations

from collections.abc import Callable

from app.core.ids import AllowanceId
from app.gateway.model import Headers
from app.gateway.terms import ShownRate, Terms

Standing = Callable[[AllowanceId], tuple[int, int] | None]
_NEVER = b"24h0m0s"
"""A bucket into which nothing flows: as long as anybody waits."""


def rate_headers(terms: Terms, standing: Standing) -> Headers:
    """The headers of the rates in force; of several, of the one of which least remains.

    standing: limit and what is available of an allowance; None where it was never asked for: it is full.
    """
    headers: Headers = []
    for rates in (terms.requests, terms.tokens):
        if rates:
            rate, remaining = _tightest(rates, standing)
            headers += (
                rate.limit,
                (rate.remaining, b"%d" % remaining),
                (rate.reset, _until_full(rate, remaining)),
            )
    return headers


def duration(milliseconds: int) -> bytes:
    """A time as OpenAI writes it: `20ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(milliseconds, 60_000)
    whole, part = divmod(rest, 1000)
    seconds = f"{whole}.{part:03d}".rstrip("0") if part else str(whole)
    if not minutes:
        return f"{seconds}s".encode()
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s".encode() if hours else f"{minutes}m{seconds}s".encode()


def _tightest(rates: tuple[ShownRate, ...], standing: Standing) -> tuple[ShownRate, int]:
    tightest, remaining = rates[0], _remaining(rates[0], standing)
    for rate in rates[1:]:
        less = _remaining(rate, standing)
        if less < remaining:
            tightest, remaining = rate, less
    return tightest, remaining


def _remaining(rate: ShownRate, standing: Standing) -> int:
    known = standing(rate.allowance_id)
    return rate.full if known is None else max(0, min(known[1], rate.full))


def _until_full(rate: ShownRate, remaining: int) -> bytes:
    missing = rate.full - remaining
    if not missing:
        return b"0s"
    if not rate.per_minute:
        return _NEVER
    return duration(-(-missing * 60_000 // rate.per_minute))
