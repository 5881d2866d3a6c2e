"""What a run comes to, in numbers that can be added up."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

ZEROS = (
    "duplicated", "missing", "mismatched_tokens", "mismatched_picos", "negative_balances", "holds_left_open",
    "over_limit", "other",
)  # fmt: skip
"""What must be nothing."""


@dataclass
class Outcome:
    """Counts over the requests of one run, or of many.

    requests: calls made.   delivered_to_the_end: good answers whose last byte the client has.
    settled: usage events.   lost: those of them whose process died.
    duplicated: settled, charged or admitted twice.
    missing: delivered, recorded or worked on, but without an event.   mismatched_tokens, mismatched_picos:
    events, balances, sums that tell another number than the engine, the journal or the price.
    over_limit: moments at which more was committed and held than allowed.   other: whatever else broke.
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
    duplicated: int = 0
    missing: int = 0
    mismatched_tokens: int = 0
    mismatched_picos: int = 0
    negative_balances: int = 0
    holds_left_open: int = 0
    over_limit: int = 0
    other: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(getattr(self, name) for name in ZEROS)

    @property
    def failed_seeds(self) -> list[int]:
        """The seeds of a sum that were not well, as its findings tell."""
        return sorted({int(finding.split(":", 1)[0]) for finding in self.findings})

    def found(self, count: str, words: str) -> None:
        """Count something that must not be."""
        setattr(self, count, getattr(self, count) + 1)
        self.findings.append(words)

    def add(self, other: Outcome) -> None:
        """Add another run's numbers; its findings are named by its seed."""
        for each in fields(self):
            if each.name not in ("seed", "digest", "findings"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.findings += [f"{other.seed}: {finding}" for finding in other.findings]

    def numbers(self) -> dict[str, int]:
        """The counts by name."""
        names = [each.name for each in fields(self) if each.name not in ("seed", "digest", "findings")]
        return {name: getattr(self, name) for name in names}


def total() -> Outcome:
    """A sum to which runs are added."""
    return Outcome(runs=0)
