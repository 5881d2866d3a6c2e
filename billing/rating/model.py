"""Rates pinned to a request, and what a usage costs at them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from app.core.money import Picos
from billing.metering.model import Meter, Usage


class Rates(msgspec.Struct, frozen=True, array_like=True):
    """Micros per million tokens of each class: the same number is picos per token."""

    input: int
    input_cached: int
    input_cache_write: int
    output: int

    @classmethod
    def of(cls, prices: Mapping[Meter, int]) -> Rates:
        """The rates of a full set of prices. Raises KeyError if a class has none: unknown is not zero."""
        return cls(*(prices[meter] for meter in Meter))


class Line(msgspec.Struct, frozen=True):
    """One class of a charge: tokens × price = amount."""

    meter: Meter
    tokens: int
    price_micros_per_mtok: int
    amount_picos: Picos


def rate(usage: Usage, rates: Rates) -> tuple[Line, ...]:
    """The lines of a charge, one for each class that has tokens; their sum is `cost`."""
    return tuple(
        Line(meter, usage.of(meter), price, Picos(usage.of(meter) * price))
        for meter in Meter
        if usage.of(meter) and (price := getattr(rates, meter.value)) is not None
    )


def cost(usage: Usage, rates: Rates) -> Picos:
    """The exact cost of a usage in picos."""
    return Picos(
        usage.input * rates.input
        + usage.input_cached * rates.input_cached
        + usage.input_cache_write * rates.input_cache_write
        + usage.output * rates.output
    )


def bound(*, input_tokens: int, output_tokens: int, rates: Rates) -> Picos:
    """The most that so many tokens can cost, whatever classes the input falls into."""
    dearest_input = max(rates.input, rates.input_cached, rates.input_cache_write)
    return Picos(input_tokens * dearest_input + output_tokens * rates.output)
