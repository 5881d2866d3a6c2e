"""Money is an integer of picos: 10⁻¹² of a currency's major unit. No float ever touches it.

A price is a whole number of micros (10⁻⁶ of the major unit) per million tokens, so one token at a
price of `p` micros per million costs exactly `p` picos: 10⁻⁶ / 10⁶ = 10⁻¹².
"""

from __future__ import annotations

import re
from typing import NewType

Picos = NewType("Picos", int)
PICOS_PER_UNIT = 10**12
MICROS_PER_UNIT = 10**6
MAX_PRICE_MICROS_PER_MTOK = 10**12
"""A million currency units per million tokens: keeps the cost of any one request inside 63 bits."""

_DECIMAL = re.compile(r"(-?)(\d{1,24})(?:\.(\d{1,12}))?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


def format_picos(picos: int) -> str:
    """The exact decimal string of an amount, without exponent or trailing zeros: `"0.00004"`."""
    sign = "-" if picos < 0 else ""
    whole, fraction = divmod(abs(picos), PICOS_PER_UNIT)
    digits = f"{fraction:012d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def parse_picos(text: str) -> Picos:
    """The picos of a decimal string. Raises ValueError if it is none or finer than a pico."""
    return Picos(_parse(text, places=12))


def format_price(micros_per_mtok: int) -> str:
    """A price as the decimal string of currency units per million tokens: `"0.54"`."""
    return format_picos(micros_per_mtok * (PICOS_PER_UNIT // MICROS_PER_UNIT))


def parse_price(text: str) -> int:
    """Micros per million tokens from units per million tokens. Raises ValueError beyond six decimals."""
    micros = _parse(text, places=6)
    if not 0 <= micros <= MAX_PRICE_MICROS_PER_MTOK:
        raise ValueError("a price lies between 0 and 1000000 per million tokens")
    return micros


def is_currency(code: str) -> bool:
    """True if `code` has the form of an ISO 4217 code."""
    return _CURRENCY.fullmatch(code) is not None


def _parse(text: str, *, places: int) -> int:
    match = _DECIMAL.fullmatch(text)
    if match is None or len(match[3] or "") > places:
        raise ValueError(f"not a decimal amount with at most {places} decimals: {text[:40]!r}")
    scale: int = 10**places
    value = int(match[2]) * scale + int((match[3] or "").ljust(places, "0"))
    return -value if match[1] else value
