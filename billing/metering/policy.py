"""What is billed, by outcome and source of the usage. A published table: data, not code scattered about.

What a client received to its end is billed. What our side broke (an engine, a process) is not, though
its usage is recorded. What the client cut, or what ran into the time limit, is billed as far as it was
counted. What nobody counted is not billed: it is recorded as unknown, with its bound, and reconciled.

Whoever counted: what lies above the most that the request could consume (`min(max_tokens, the model's
limit)` for each answer; the bound of its input) is not billed. An engine's number beyond it is recorded as
reported and flagged `output_above_bound` or `input_above_bound`. So no request costs more than was held.
"""

from __future__ import annotations

from collections.abc import Mapping

from billing.metering.bounds import within
from billing.metering.model import NOTHING, Meter, Outcome, Usage, UsageSource

_ALL = frozenset(Meter)
_NONE: frozenset[Meter] = frozenset()
_COUNTED: Mapping[UsageSource, frozenset[Meter]] = {
    UsageSource.ENGINE: _ALL,
    UsageSource.ENGINE_PARTIAL: _ALL,
    UsageSource.TOKENIZER: _ALL,
    UsageSource.UNKNOWN: _NONE,
}
_FREE: Mapping[UsageSource, frozenset[Meter]] = dict.fromkeys(UsageSource, _NONE)

BILLED: Mapping[Outcome, Mapping[UsageSource, frozenset[Meter]]] = {
    Outcome.COMPLETED: _COUNTED,
    Outcome.CLIENT_CANCELLED: _COUNTED,
    Outcome.TIMED_OUT: _COUNTED,
    Outcome.ENGINE_FAILED: _FREE,
    Outcome.REFUSED_BY_ENGINE: _FREE,
    Outcome.LOST: _FREE,
}
"""The classes that are billed."""


def billed(outcome: Outcome, source: UsageSource, usage: Usage, *, bound: Usage | None = None) -> Usage:
    """The part of a usage that is billed by the published table.

    bound: the most that the request could consume, where the usage may lie above it.
    """
    if bound is not None:
        usage = within(usage, bound)
    meters = BILLED[outcome][source]
    if len(meters) == len(_ALL):
        return usage
    if not meters:
        return NOTHING
    classes = {meter.value: usage.of(meter) for meter in meters}
    return Usage(**classes, reasoning=usage.reasoning if Meter.OUTPUT in meters else 0)
