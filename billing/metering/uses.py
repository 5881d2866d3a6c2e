"""What a request needs and uses of an allowance, by what that counts. Pure; one place for all who ask.

| what | needed at admission | used at the end |
|---|---|---|
| picos | the cost of its bound | its cost |
| tokens | bound of input and output | all that is billed |
| input_tokens | bound of input | what is billed of input: fresh, cached, written to the cache |
| output_tokens | bound of output | what is billed of output |
| requests | 1 | 1, however it ends |
| concurrent | 1 | 0: it is only held |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from billing.metering.model import Usage

COUNTED = ("picos", "tokens", "input_tokens", "output_tokens", "requests", "concurrent")
"""What an allowance that is lent may count."""
PER_REQUEST: Mapping[str, tuple[int, int]] = MappingProxyType({"requests": (1, 1), "concurrent": (1, 0)})
"""(needed, used) of whatever each request needs the same of."""


def needed_of(what: str, bound: Usage, *, cost_picos: int) -> int:
    """The most that a request can use.   bound: input and output.   cost_picos: of that bound."""
    if what in PER_REQUEST:
        return PER_REQUEST[what][0]
    return _amount(what, bound, cost_picos=cost_picos)


def used_of(what: str, billed: Usage, *, cost_picos: int) -> int:
    """What an ended request used: at most what it needed, if it was billed within its bound.

    Raises ValueError if nobody knows how to count it.
    """
    if what == "picos":
        return cost_picos
    if what in PER_REQUEST:
        return PER_REQUEST[what][1]
    return _amount(what, billed, cost_picos=cost_picos)


def _amount(what: str, usage: Usage, *, cost_picos: int) -> int:
    match what:
        case "picos":
            return cost_picos
        case "tokens":
            return usage.total
        case "input_tokens":
            return usage.total - usage.output
        case "output_tokens":
            return usage.output
    raise ValueError(f"{what} is nothing that an allowance counts")
