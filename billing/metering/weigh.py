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
    Without a report, or with half of one, the usage is unknown; a half that is told narrows its bound.
    """
    converted = None if report is None else convert(report, convention=convention)
    if converted is None:
        half = report if convention is Convention.INCLUDES_CACHE else None
        return Weighed(NOTHING, UsageSource.UNKNOWN, _narrowed(bound, half), _marks(report))
    usage, flags = converted
    if usage.input + usage.input_cached + usage.input_cache_write > bound.input:
        flags += ("input_above_bound",)
    if usage.output > bound.output:
        flags += ("output_above_bound",)
    return Weighed(usage, UsageSource.ENGINE if complete else UsageSource.ENGINE_PARTIAL, None, flags)


def weigh_counted(
    *, input_tokens: int, output_tokens: int, bound: Usage, cached: int | None = None
) -> Weighed:
    """What a tokenizer counted: an estimate, never above the bound.

    cached: the part of the input that the engine told it had found in its cache.
    """
    found = min(cached or 0, input_tokens)
    usage, flags = capped(Usage(input_tokens - found, found, 0, output_tokens), bound)
    if cached is None:
        flags += ("cached_unknown",)
    return Weighed(usage, UsageSource.TOKENIZER, None, flags)


def _narrowed(bound: Usage, report: Report | None) -> Usage:
    prompt, completion = (report.prompt, report.completion) if report is not None else (None, None)
    return Usage(
        input=bound.input if prompt is None else min(prompt, bound.input),
        output=bound.output if completion is None else min(completion, bound.output),
    )


def _marks(report: Report | None) -> tuple[str, ...]:
    return ("usage_malformed",) if report is not None and report.malformed else ()
