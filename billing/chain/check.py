"""Checks a file of lines while it is read: the chain, the arithmetic, the sums, the corrections.

In constant memory: what has to wait for the end goes to a temporary file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from app.core.money import format_picos
from billing.chain.arithmetic import check_correction, check_event
from billing.chain.link import digest_of
from billing.chain.sums import Sums
from billing.chain.ties import Ties
from billing.chain.walk import Flaw, Found, Walk
from billing.chain.wire import (
    Correction,
    Event,
    KeptHead,
    Line,
    PageEnd,
    Prices,
    Unreadable,
    Withheld,
    read_line,
)

MOST_KEPT = 1000
"""Findings that are kept in words; more are only counted."""


class Finding(NamedTuple):
    """One thing that is wrong.   line: its number in the file, from 1; None: of the file as a whole."""

    line: int | None
    id: str | None
    flaw: Flaw
    what: str


@dataclass(frozen=True)
class Scope:
    """What the file should be.   partial: a filtered download, in which lines may be left out.

    heads: those that the tenant kept.   first_day, end_day: days of the chain, [first, end).
    """

    partial: bool = False
    heads: tuple[KeptHead, ...] = ()
    first_day: str | None = None
    end_day: str | None = None


class Check:
    """Takes the lines of a file, one after another; `finish` tells the rest."""

    def __init__(self, scope: Scope, *, zone: ZoneInfo) -> None:
        self._walk = Walk(
            partial=scope.partial, heads=scope.heads, first_day=scope.first_day, end_day=scope.end_day
        )
        self._ties = Ties(partial=scope.partial)
        self._partial = scope.partial
        self._number = 0
        self._of_page = 0
        self._end: PageEnd | None = None
        self._prices: dict[tuple[str, str], Prices] = {}
        self.sums = Sums(zone)
        self.findings: list[Finding] = []
        self.flaws: Counter[Flaw] = Counter()
        self.kinds: Counter[str] = Counter()
        self.untied = 0
        """Corrections of requests that the file doesn't have, though it may: known when it is finished."""

    @property
    def tenant_id(self) -> str | None:
        """Whose lines these are; None before the first."""
        return self._walk.tenant_id

    @property
    def start(self) -> str:
        """Where in the chain the file begins, in words."""
        return self._walk.start

    @property
    def loose_from(self) -> str | None:
        """After which line lines could have been cut from the end unseen, in words; None: after none."""
        return self._walk.loose_from

    def take(self, raw: bytes) -> Event | Correction | None:
        """Check the next line of the file, without its newline; returns it if its numbers are sound."""
        self._number += 1
        if not raw:
            return None
        try:
            line, plain = read_line(raw)
        except Unreadable as error:
            self._of_page += 1
            self.note(Flaw.UNREADABLE, str(error))
            return None
        if isinstance(line, PageEnd):
            self._turn_page(line)
            return None
        self._end, self._of_page = None, self._of_page + 1
        return self._checked(line, plain)

    def note(self, flaw: Flaw, what: str, *, line_id: str | None = None) -> None:
        """Keep a finding about the line that was taken last."""
        self.keep(Finding(self._number, line_id, flaw, what))

    def finish(self, *, expected: Mapping[str, int] | None = None) -> None:
        """Check what only the end can tell, once.   expected: net picos by currency."""
        self._tie()
        for found in self._walk.end():
            self.keep(Finding(None, None, *found))
        if self._end is not None and self._end.next is not None:
            self.keep(Finding(None, None, Flaw.UNFINISHED, f"the download goes on: after={self._end.next}"))
        for currency, picos in (expected or {}).items():
            total = self.sums.totals().get(currency, 0)
            if total != picos:
                what = f"the sum is {format_picos(total)} {currency}, expected was {format_picos(picos)}"
                self.keep(Finding(None, None, Flaw.TOTAL, what))

    def _checked(self, line: Line, plain: dict[str, Any]) -> Event | Correction | None:
        self.kinds[type(line).__name__.lower()] += 1
        found = self._walk.step(line.chain, tenant_id=line.tenant_id, digest=_digest(line, plain))
        wrong = list(_arithmetic(line))
        line_id = id_of(line)
        for flaw, what in [*found, *wrong]:
            self.note(flaw, what, line_id=line_id)
        if isinstance(line, Withheld) or wrong:
            return None
        self._compare_prices(line)
        self._ties.add(line, number=self._number)
        self.sums.add(line)
        return line

    def _tie(self) -> None:
        """Hold corrections against their events; without one, a correction is wrong if the file has all."""
        is_all = self._walk.is_from_beginning and not (self._partial or self.kinds["withheld"] or self.flaws)
        for tie in self._ties.found():
            if tie.what is not None or is_all:
                what = tie.what or "the request that it corrects is not in this file, which has all"
                self.keep(Finding(tie.line, tie.id, Flaw.CORRECTION, what))
            else:
                self.untied += 1

    def _compare_prices(self, line: Event | Correction) -> None:
        """A version's prices of a model are the same in every line: publishing froze them."""
        known = self._prices.setdefault((line.price_version_id, line.model_id), line.prices)
        if known != line.prices:
            what = f"earlier lines have other prices for {line.model} by version {line.price_version_id}"
            self.note(Flaw.PRICE, what, line_id=id_of(line))

    def _turn_page(self, end: PageEnd) -> None:
        if end.lines != self._of_page:
            self.note(Flaw.MISSING, f"the page had {end.lines} lines, here are {self._of_page}")
        self._end, self._of_page = end, 0

    def keep(self, finding: Finding) -> None:
        """Count a finding, and keep it in words if there aren't too many."""
        self.flaws[finding.flaw] += 1
        if len(self.findings) < MOST_KEPT:
            self.findings.append(finding)


def _digest(line: Line, plain: dict[str, Any]) -> bytes:
    if isinstance(line, Withheld):
        return bytes.fromhex(line.line)
    return digest_of({name: value for name, value in plain.items() if name != "chain"})


def _arithmetic(line: Line) -> Iterator[Found]:
    wrong: Iterable[str] = ()
    if isinstance(line, Event):
        wrong = check_event(line)
    elif isinstance(line, Correction):
        wrong = check_correction(line)
    return (Found(Flaw.ARITHMETIC, what) for what in wrong)


def id_of(line: Line | PageEnd) -> str | None:
    """The id of the event or correction that a line tells of; None if it tells of none."""
    match line:
        case Event():
            return line.request_id
        case Correction():
            return line.correction_id
    return None
