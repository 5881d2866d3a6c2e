"""`x-ratelimit-*` as OpenAI's: of requests and tokens the limit, what remains, when all is there again.

Source: platform.openai.com/docs/guides/rate-limits, "Rate limits in headers".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from app.catalog.limits import Limit
from app.core.ids import AllowanceId
from app.gateway.model import Headers
from app.gateway.terms import Terms

Standing = Callable[[AllowanceId], tuple[int, int] | None]


def rate_headers(terms: Terms, standing: Standing) -> Headers:
    """The headers of the rates in force; of several, of the one of which least remains.

    standing: limit and what is available of an allowance; None where it was never asked for: it is full.
    """
    headers: Headers = []
    for kind, rates in ((b"requests", terms.requests), (b"tokens", terms.tokens)):
        if rates:
            limit, remaining = _tightest(rates, standing)
            headers += (
                (b"x-ratelimit-limit-" + kind, b"%d" % limit.amount),
                (b"x-ratelimit-remaining-" + kind, b"%d" % remaining),
                (b"x-ratelimit-reset-" + kind, _until_full(limit, remaining)),
            )
    return headers


def duration(milliseconds: int) -> bytes:
    """A time as OpenAI writes it: `20ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    if not minutes:
        return f"{seconds}s".encode()
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s".encode() if hours else f"{minutes}m{seconds}s".encode()


def _tightest(rates: Sequence[Limit], standing: Standing) -> tuple[Limit, int]:
    if len(rates) == 1:
        return rates[0], _remaining(rates[0], standing)
    return min(((limit, _remaining(limit, standing)) for limit in rates), key=lambda pair: pair[1])


def _remaining(limit: Limit, standing: Standing) -> int:
    full = _full(limit)
    known = standing(limit.allowance_id)
    return full if known is None else max(0, min(known[1], full))


def _full(limit: Limit) -> int:
    return limit.amount if limit.burst is None else limit.burst


def _until_full(limit: Limit, remaining: int) -> bytes:
    missing = _full(limit) - remaining
    if not missing:
        return b"0s"
    return duration(math.ceil(missing * 60_000 / limit.amount)) if limit.amount else duration(86_400_000)
