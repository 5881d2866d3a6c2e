"""What a run comes to, in numbers that can be added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

ZEROS = (
    "duplicated", "missing", "mismatched_tokens", "mismatched_picos", "negative_balances", "holds_left_open",
    "mismatched_limits", "over_limit", "refused_while_available", "gaps", "unlike_rebuilt", "chain_flaws",
    "other",
)  # fmt: skip
"""What must be nothing."""


@dataclass
class Outcome:
    """Counts over the requests of one run.

    requests: calls made.   delivered_to_the_end: good answers whose last byte the client has.
    settled: usage events.   lost: those of them whose process died.
    duplicated: settled, charged or admitted twice.
    missing: delivered, recorded or worked on, but without an event.   mismatched_tokens, mismatched_picos:
    events, balances, sums that tell another number than the engine, the journal or the price.
    corrected, expired: corrections of events; grants of which nothing remains after their end.
    sealed: lines in the tenants' chains.   weighed: refusals of which is known what was left.
    limits: allowances besides wallets.   limited: refusals by one of them.   rated: takings from rates.
    mismatched_limits: whose count is not that of its events, or that a request drew on wrongly or not at all.
    over_limit: moments at which more was committed and held than allowed.
    refused_while_available: of those weighed, refused though what was really uncommitted covered them.
    gaps, unlike_rebuilt, chain_flaws: what reconciliation, rebuilt projections and the chains' reader find.
    other: whatever else broke.
    """

    seed: int = 0
    digest: str = ""
    runs: int = 1
    deaths: int = 0
    requests: int = 0
    delivered_to_the_end: int = 0
    settled: int = 0
    lost: int = 0
    refused: int = 0
    corrected: int = 0
    expired: int = 0
    sealed: int = 0
    weighed: int = 0
    limits: int = 0
    limited: int = 0
    rated: int = 0
    duplicated: int = 0
    missing: int = 0
    mismatched_tokens: int = 0
    mismatched_picos: int = 0
    negative_balances: int = 0
    holds_left_open: int = 0
    mismatched_limits: int = 0
    over_limit: int = 0
    refused_while_available: int = 0
    gaps: int = 0
    unlike_rebuilt: int = 0
    chain_flaws: int = 0
    other: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(getattr(self, name) for name in ZEROS)

    def found(self, count: str, words: str) -> None:
        """Count something that must not be."""
        setattr(self, count, getattr(self, count) + 1)
        self.findings.append(words)

    def numbers(self) -> dict[str, int]:
        """The counts by name."""
        names = [each.name for each in fields(self) if each.name not in ("seed", "digest", "findings")]
        return {name: getattr(self, name) for name in names}


@dataclass
class Sum:
    """Many runs.   failed: by the seed or point of a run, the first thing that was wrong."""

    numbers: dict[str, int] = field(default_factory=lambda: Outcome(runs=0).numbers())
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, task: str, numbers: Mapping[str, int], findings: Sequence[str]) -> None:
        """Add a run's numbers."""
        for name, number in numbers.items():
            self.numbers[name] += number
        if findings:
            self.failed[task] = findings[0]

    @property
    def ok(self) -> bool:
        return not self.failed and not any(self.numbers[name] for name in ZEROS)
