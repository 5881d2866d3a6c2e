"""From what an engine reports to disjoint token classes. Pure; never negative, never silently zero."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from billing.metering.model import Usage


class Convention(StrEnum):
    """Whether the reported prompt tokens contain the cached ones. Written down, not guessed."""

    INCLUDES_CACHE = "includes_cache"
    EXCLUDES_CACHE = "excludes_cache"
    UNKNOWN = "unknown"


class Report(msgspec.Struct, frozen=True):
    """Token counts as an engine states them; None means that it did not say.

    malformed: it also stated something that is no count: below zero, a fraction, a word.
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    malformed: bool = False

    @property
    def is_full(self) -> bool:
        """True if it tells both input and output."""
        return self.prompt is not None and self.completion is not None

    def updated(self, later: Report) -> Report:
        """This report with every field that a later one states: the last value wins, nothing is added."""
        return Report(
            prompt=self.prompt if later.prompt is None else later.prompt,
            completion=self.completion if later.completion is None else later.completion,
            cached=self.cached if later.cached is None else later.cached,
            cache_write=self.cache_write if later.cache_write is None else later.cache_write,
            reasoning=self.reasoning if later.reasoning is None else later.reasoning,
            malformed=self.malformed or later.malformed,
        )


class Converted(NamedTuple):
    """flags: what was odd or unknown about the report, for the event and for reconciliation."""

    usage: Usage
    flags: tuple[str, ...]


def convert(report: Report, *, convention: Convention) -> Converted | None:
    """The disjoint classes of a report, or None if it lacks the prompt or the completion count.

    A cached part larger than the prompt is impossible where the prompt includes it: it is cut to the
    prompt and flagged. With an unknown convention it proves that the prompt excludes it.
    Negative counts count as not stated.
    """
    prompt, completion = _stated(report.prompt), _stated(report.completion)
    if prompt is None or completion is None:
        return None
    flags: list[str] = ["usage_malformed"] if report.malformed else []
    cached, write = _stated(report.cached), _stated(report.cache_write) or 0
    if cached is None:
        flags.append("cached_unknown")
    fresh, cached, write = _partition(prompt, (cached or 0, write), convention=convention, flags=flags)
    reasoning = _stated(report.reasoning) or 0
    if reasoning > completion:
        flags.append("reasoning_above_output")
        reasoning = completion
    return Converted(Usage(fresh, cached, write, completion, reasoning), tuple(flags))


def _partition(
    prompt: int, cache: tuple[int, int], *, convention: Convention, flags: list[str]
) -> tuple[int, int, int]:
    """(fresh, cached, written) of a prompt, none negative; together the prompt, where that includes them."""
    cached, write = cache
    if convention is Convention.EXCLUDES_CACHE:
        return prompt, cached, write
    if cached + write > prompt:
        flags.append("cached_above_input")
        if convention is Convention.UNKNOWN:
            return prompt, cached, write
        cached = min(cached, prompt)
        write = min(write, prompt - cached)
    return prompt - cached - write, cached, write


def _stated(count: int | None) -> int | None:
    return None if count is None or count < 0 else count
