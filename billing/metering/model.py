"""The words of metering: token classes, outcomes, sources. Classes are disjoint, so they add up."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Meter(StrEnum):
    """A class of token that is counted and priced."""

    INPUT = "input"
    INPUT_CACHED = "input_cached"
    INPUT_CACHE_WRITE = "input_cache_write"
    OUTPUT = "output"


class Outcome(StrEnum):
    """How an admitted request ended."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    ENGINE_FAILED = "engine_failed"
    REFUSED_BY_ENGINE = "refused_by_engine"
    TIMED_OUT = "timed_out"
    LOST = "lost"


class UsageSource(StrEnum):
    """Who counted: the engine to the end, the engine up to a cut, a tokenizer, or nobody."""

    ENGINE = "engine"
    ENGINE_PARTIAL = "engine_partial"
    TOKENIZER = "tokenizer"
    UNKNOWN = "unknown"


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens by disjoint class; `reasoning` is an informational subset of `output`."""

    input: int = 0
    input_cached: int = 0
    input_cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All tokens of the request."""
        return self.input + self.input_cached + self.input_cache_write + self.output

    def of(self, meter: Meter) -> int:
        """Tokens of one class."""
        return int(getattr(self, meter.value))


NOTHING = Usage()
