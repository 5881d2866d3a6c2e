"""What can be wrong with the books, each in a class of its own that is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Wrong(StrEnum):
    """Classes of findings; all but the last count requests, wallets or holds."""

    DUPLICATED = "duplicated"
    """Admitted, settled, summed or charged more than once."""
    MISSING = "missing"
    """Delivered, admitted or worked on, and not recorded, or not as what it was."""
    MISMATCHED_TOKENS = "mismatched_tokens"
    """Recorded with other tokens than its client, its engine or its journal tells."""
    MISMATCHED_PICOS = "mismatched_picos"
    """Charged with another amount than its tokens cost, or the sums of charges differ between places."""
    NEGATIVE_BALANCES = "negative_balances"
    """Wallets and allowances beyond their limits."""
    HOLDS_LEFT_OPEN = "holds_left_open"
    """Money that is still held or lent when nothing runs."""
    OTHER = "other"
    """Anything else that must not be: an answer that just stops, a counter that has to stay 0."""


class Finding(NamedTuple):
    """One thing that is wrong.   subject: the request, wallet, lease or process."""

    wrong: Wrong
    subject: str
    words: str

    def __str__(self) -> str:
        return f"{self.wrong}: {self.subject}: {self.words}"


def tally(findings: Iterable[Finding]) -> dict[str, int]:
    """How many different subjects are wrong in each way."""
    counts = Counter(wrong for wrong, _ in {(finding.wrong, finding.subject) for finding in findings})
    return {wrong.value: counts[wrong] for wrong in Wrong}
