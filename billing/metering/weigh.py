"""From a report, or the lack of one, to what an event records: usage, its source, bound and flags. Pure."""

from __future__ import annotations

from typing import NamedTuple

from billing.metering.bounds import capped
from billing.metering.convert import Convention, Report, convert
from billing.metering.model import NOTHING, Usage, UsageSource


class Weighed(NamedTuple):
    """What is known to be consumed.   unknown_bound: the most it can be where nobody counted, else None."""

    usage: Usage
    source: UsageSource
    unknown_bound: Usage | None = None
    flags: tuple[str, ...] = ()


UNTOUCHED = Weighed(NOTHING, UsageSource.ENGINE)
"""No engine worked on it: the zero is known."""


def weigh(report: Report | None, *, convention: Convention, complete: bool, bound: Usage) -> Weighed:
    """What an engine's report says.

    complete: the answer came to its end, so the report is the last word.   bound: input and output at most.
    Without a report, or with half of one, the usage is unknown, and what is known of it is kept.
    """
    converted = None if report is None else convert(report, convention=convention)
    if converted is None:
        return Weighed(NOTHING, UsageSource.UNKNOWN, bound)
    usage, flags = converted
    if usage.input + usage.input_cached + usage.input_cache_write > bound.input:
        flags += ("input_above_bound",)
    if usage.output > bound.output:
        flags += ("output_above_bound",)
    return Weighed(usage, UsageSource.ENGINE if complete else UsageSource.ENGINE_PARTIAL, None, flags)


def weigh_counted(*, input_tokens: int, output_tokens: int, bound: Usage) -> Weighed:
    """What a tokenizer counted: an estimate, never above the bound."""
    usage, flags = capped(
        Usage(input=input_tokens, output=output_tokens), input_tokens=bound.input, output_tokens=bound.output
    )
    return Weighed(usage, UsageSource.TOKENIZER, None, (*flags, "cached_unknown"))
