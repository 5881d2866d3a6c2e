"""Whether a line's numbers follow from one another: tokens, what is billed of them, and the amount. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from app.core.money import format_picos, parse_picos, parse_price
from billing.chain.wire import Change, Correction, Counted, Event, Prices, Tokens
from billing.metering.model import NOTHING, Meter, Outcome, Usage, UsageSource
from billing.metering.policy import billed
from billing.rating.model import Rates, cost

_INPUTS = (Meter.INPUT, Meter.INPUT_CACHED, Meter.INPUT_CACHE_WRITE)
_ABOVE = {**dict.fromkeys(_INPUTS, "input_above_bound"), Meter.OUTPUT: "output_above_bound"}
"""Flags with which less is billed than was counted: what lies above the request's bound is free."""


def check_event(event: Event) -> Iterator[str]:
    """What does not follow, in words with its numbers; nothing if all does."""
    if event.usage.reasoning > event.usage.output:
        yield f"reasoning {event.usage.reasoning} is a part of output {event.usage.output}, and more than it"
    if (event.unknown_bound is None) != (event.usage_source != UsageSource.UNKNOWN):
        yield "a bound stands exactly where nobody counted"
    yield from _check_billed(event)
    yield from _check_cost(event)


def check_correction(correction: Correction) -> Iterator[str]:
    """What does not follow in a correction."""
    amount = _amount(correction.amount, correction.amount_picos)
    rates = _rates(correction.prices)
    if amount is None or rates is None:
        yield "its amount or its prices are no decimal numbers that agree"
        return
    if not amount:
        yield "it neither gives back nor charges anything"
    change = _usage(correction.billed_change)
    worth = -cost(change, rates)
    if change != NOTHING and worth != amount:
        yield f"its tokens are worth {format_picos(worth)}, its amount is {correction.amount}"


def _check_billed(event: Event) -> Iterator[str]:
    try:
        outcome, source = Outcome(event.outcome), UsageSource(event.usage_source)
    except ValueError as error:
        yield f"the published policy doesn't know it: {error}"
        return
    counted = _usage(event.usage)
    due, told = billed(outcome, source, counted), _usage(event.billed)
    if due == told:
        return
    for meter in Meter:
        most, least = due.of(meter), 0 if _ABOVE[meter] in event.flags else due.of(meter)
        if not least <= told.of(meter) <= most:
            rule = f"{outcome.value}, counted by {source.value}"
            yield f"{told.of(meter)} {meter.value} are billed; by the policy ({rule}) it is {most}"


def _check_cost(event: Event) -> Iterator[str]:
    told, rates = _amount(event.cost, event.cost_picos), _rates(event.prices)
    if told is None or rates is None:
        yield "its cost or its prices are no decimal numbers that agree"
        return
    due = cost(_usage(event.billed), rates)
    if told != due:
        yield f"its billed tokens cost {format_picos(due)} at its prices, it says {event.cost}"


def _usage(tokens: Tokens | Counted | Change) -> Usage:
    return Usage(tokens.input, tokens.input_cached, tokens.input_cache_write, tokens.output)


def _amount(decimal: str, picos: str) -> int | None:
    """The picos that both say, or None."""
    try:
        amount = parse_picos(decimal)
    except ValueError:
        return None
    return amount if str(amount) == picos and format_picos(amount) == decimal else None


@lru_cache(maxsize=1024)
def _rates(prices: Prices) -> Rates | None:
    try:
        return Rates(*(parse_price(getattr(prices, meter.value)) for meter in Meter))
    except ValueError:
        return None
