"""What an engine has reported of a running answer so far: cumulative, so the last value wins."""

from __future__ import annotations

from collections.abc import Iterable

from billing.metering.convert import Report


class Gauge:
    """Follows the reports of one answer.

    per_choice: the engine reports every choice on its own (all do, with `n` or several prompts), so
    choices are summed: outputs over all, prompts once for each group of `choices_per_prompt`.
    """

    __slots__ = ("_by_choice", "_choices_per_prompt", "_last")

    def __init__(self, *, per_choice: bool, choices_per_prompt: int = 1) -> None:
        self._by_choice: dict[int, Report] | None = {} if per_choice else None
        self._choices_per_prompt = choices_per_prompt
        self._last: Report | None = None

    def observe(self, report: Report | None, *, choice: int | None = None) -> None:
        """Take a report; one that can't be told apart by choice is ignored where choices count alone."""
        if report is None:
            return
        if self._by_choice is None:
            self._last = report if self._last is None else self._last.updated(report)
        elif choice is not None:
            before = self._by_choice.get(choice)
            self._by_choice[choice] = report if before is None else before.updated(report)

    def conclude(self, report: Report) -> None:
        """Take the answer's last word, which counts all choices together."""
        before = self.report()
        self._last = report if before is None else before.updated(report)
        self._by_choice = None

    def report(self) -> Report | None:
        """The usage so far, or None if nothing was reported."""
        if self._by_choice is None:
            return self._last
        if not self._by_choice:
            return None
        prompts: dict[int, Report] = {}
        for choice, report in self._by_choice.items():
            group = choice // self._choices_per_prompt
            prompts[group] = _larger(prompts.get(group), report)
        return Report(
            prompt=_sum(report.prompt for report in prompts.values()),
            completion=_sum(report.completion for report in self._by_choice.values()),
            cached=_sum(report.cached for report in prompts.values()),
            cache_write=_sum(report.cache_write for report in prompts.values()),
            reasoning=_sum(report.reasoning for report in self._by_choice.values()),
            malformed=any(report.malformed for report in self._by_choice.values()),
        )


def _larger(one: Report | None, other: Report) -> Report:
    if one is None:
        return other
    return Report(
        prompt=_max(one.prompt, other.prompt),
        cached=_max(one.cached, other.cached),
        cache_write=_max(one.cache_write, other.cache_write),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of those that were told; None if none was: unknown is not zero."""
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _max(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)
