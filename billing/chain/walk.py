"""Follows a chain from line to line and says where it is not whole. Pure; constant memory.

After a flaw it goes on from what the line claims, so that one change is told once, not at each line after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from enum import StrEnum
from typing import NamedTuple

from billing.chain.link import BEGINNING, Head, genesis, hash_of
from billing.chain.wire import KeptHead, Place


class Flaw(StrEnum):
    """What can be wrong with a line, or with a file."""

    UNREADABLE = "unreadable"
    CHANGED = "changed"
    REPLACED = "replaced"
    MISSING = "missing"
    OUT_OF_ORDER = "out_of_order"
    FOREIGN = "foreign"
    ARITHMETIC = "arithmetic"
    PRICE = "price"
    DOUBLE = "double"
    UNFINISHED = "unfinished"
    TOTAL = "total"
    RECOUNT = "recount"
    CORRECTION = "correction"


class Found(NamedTuple):
    """A flaw and its numbers in words."""

    flaw: Flaw
    what: str


class Walk:
    """The state of following one tenant's chain.

    partial: lines may be left out (a filtered download), so only what is there is checked.
    heads: what the tenant kept; every line up to one of them must be there, as it was.
    first_day, end_day: of which days, [first, end); None: from the first line's day on, to the last head.
    A head within the file counts always.
    """

    def __init__(
        self,
        *,
        partial: bool,
        heads: Iterable[KeptHead],
        first_day: str | None = None,
        end_day: str | None = None,
    ) -> None:
        self._partial = partial
        self._days = (first_day, end_day)
        self._kept: dict[str, list[KeptHead]] = defaultdict(list)
        for head in sorted(_distinct(heads), key=lambda head: (head.day, head.sequence)):
            self._kept[head.day].append(head)
        self._met: set[KeptHead] = set()
        self._outgrown: set[KeptHead] = set()
        self._head: Head | None = None
        self._began: tuple[str, int] = ("", 0)
        self.tenant_id: str | None = None
        self.start = "there are no lines"
        self.is_from_beginning = False

    def step(self, place: Place, *, tenant_id: str, digest: bytes) -> list[Found]:
        """What is wrong with a line or before it."""
        found = list(self._own(place, digest=digest))
        if self.tenant_id is None:
            self.tenant_id, self._began = tenant_id, (place.day, place.sequence)
            found += self._begin(place)
        elif tenant_id != self.tenant_id:
            return [*found, Found(Flaw.FOREIGN, f"it is of tenant {tenant_id}, not {self.tenant_id}")]
        else:
            found += self._follow(place)
        found += self._against_kept(place)
        if self._head is None or (place.day, place.sequence) > self._head[:2]:
            self._head = Head(place.day, place.sequence, bytes.fromhex(place.hash))
        return found

    @property
    def loose_from(self) -> str | None:
        """After which line lines could have been cut from the end unseen, in words.

        None if the file ends with the last line of a day that had ended when its head was kept.
        """
        fixed = max(self._met, key=lambda head: (head.day, head.sequence), default=None)
        if fixed is None:
            return "its first line, because no kept head is of a line in it"
        is_last = self._head is not None and self._head[:2] == (fixed.day, fixed.sequence)
        if is_last and not fixed.open:
            return None
        return f"line {fixed.sequence} of {fixed.day}, the last that a kept head fixes"

    def end(self) -> list[Found]:
        """What the kept heads know of and the file lacks, and heads that are not of this chain."""
        unmet = [head for day in sorted(self._kept) for head in self._kept[day] if head not in self._met]
        return [found for head in unmet for found in self._lacking(head)]

    def _lacking(self, head: KeptHead) -> Iterator[Found]:
        """That a line which a head fixes should be here, and no line stands in its place."""
        if self.tenant_id not in (None, head.tenant_id):
            yield Found(Flaw.FOREIGN, f"the kept head of {head.day} is of tenant {head.tenant_id}")
        elif not self._partial and self._is_due(head):
            what = f"{head.day} has lines up to {head.sequence} by the kept head"
            yield Found(Flaw.MISSING, f"{what}, and line {head.sequence} is not here")

    def _is_due(self, head: KeptHead) -> bool:
        """True if a head's line lies within the file, or without it on a day that was asked for."""
        place, last = (head.day, head.sequence), self._head[:2] if self._head is not None else ("", 0)
        if self._began <= place <= last:
            return True
        first, end = self._days[0] or self._began[0], self._days[1] or "~"
        return first <= head.day < end and (head.day < self._began[0] or place > last)

    def _own(self, place: Place, *, digest: bytes) -> Iterator[Found]:
        previous = bytes.fromhex(place.previous)
        hashed = hash_of(previous, day=place.day, sequence=place.sequence, digest=digest)
        if hashed.hex() != place.hash:
            yield Found(
                Flaw.CHANGED, f"its content gives hash {hashed.hex()[:16]}…, it says {place.hash[:16]}…"
            )

    def _begin(self, place: Place) -> Iterator[Found]:
        """What the first line tells of what was before it."""
        if place.sequence > 1:
            self.start = f"begins within {place.day}, at line {place.sequence}"
            if not self._partial:
                yield _gap(1, place)
            return
        earlier = self._earlier(place)
        roots = [(BEGINNING, "begins with the tenant's first line")]
        roots += [(bytes.fromhex(head.hash), f"goes on from the kept head of {head.day}") for head in earlier]
        self.start = f"begins with {place.day}; what was before it, the file can't tell"
        for before, words in roots:
            if self._goes_back_to(before, place):
                self.start, self.is_from_beginning = words, before == BEGINNING
        anew = list(self._anew(place, earlier))
        yield from anew
        ended = [head for head in earlier if not head.open and _day_after(head.day) == place.day]
        if not anew and ended and not self._goes_back_to(bytes.fromhex(ended[-1].hash), place):
            what = f"{place.day} does not go on from line {ended[-1].sequence} of {ended[-1].day}"
            yield Found(Flaw.REPLACED, f"{what}, with which that day had ended by the kept head")

    def _anew(self, place: Place, earlier: Sequence[Head | KeptHead]) -> Iterator[Found]:
        """That a line begins a chain though there were lines on earlier days."""
        if earlier and place.sequence == 1 and self._goes_back_to(BEGINNING, place):
            what = f"it begins as if the tenant had no line before, but {earlier[-1].day} has"
            yield Found(Flaw.REPLACED, what)

    def _earlier(self, place: Place) -> list[KeptHead]:
        """The newest kept head of each day before a line's."""
        own = {
            day: [head for head in heads if head.tenant_id == self.tenant_id]
            for day, heads in self._kept.items()
        }
        return [heads[-1] for day, heads in sorted(own.items()) if day < place.day and heads]

    def _goes_back_to(self, before: bytes, place: Place) -> bool:
        assert self.tenant_id is not None
        return genesis(self.tenant_id, day=place.day, before=before).hex() == place.previous

    def _follow(self, place: Place) -> Iterator[Found]:
        """What is wrong between the line before and this one."""
        head, here = self._head, (place.day, place.sequence)
        assert head is not None
        if here <= head[:2]:
            yield Found(
                Flaw.OUT_OF_ORDER, f"line {head.sequence} of {head.day} came before it: moved or twice"
            )
        elif place.day == head.day and place.sequence == head.sequence + 1:
            if place.previous != head.hash.hex():
                yield Found(Flaw.REPLACED, "the line before it is not the one that it was linked to")
        elif self._partial:
            yield from self._anew(place, [head] if head.day < place.day else [])
        elif place.day == head.day:
            yield _gap(head.sequence + 1, place)
        else:
            yield from self._turn(place, head)

    def _turn(self, place: Place, head: Head) -> Iterator[Found]:
        """What is wrong between the last line of a day and a line of a later one."""
        if place.sequence > 1:
            yield _gap(1, place)
        elif not self._goes_back_to(head.hash, place):
            what = f"{place.day} does not go on from line {head.sequence} of {head.day}"
            yield Found(Flaw.MISSING, f"{what}: the end of that day or whole days between are missing")

    def _against_kept(self, place: Place) -> Iterator[Found]:
        for head in self._kept.get(place.day, ()):
            if head.tenant_id != self.tenant_id:
                continue
            if not head.open and place.sequence > head.sequence and head not in self._outgrown:
                self._outgrown.add(head)
                what = f"{place.day} had ended with line {head.sequence} by the kept head"
                yield Found(Flaw.REPLACED, what)
            if head.sequence != place.sequence:
                continue
            self._met.add(head)
            if head.hash != place.hash:
                yield Found(
                    Flaw.REPLACED, f"its hash is {place.hash[:16]}…, the kept head says {head.hash[:16]}…"
                )


def _gap(first: int, place: Place) -> Found:
    last = place.sequence - 1
    lines = (
        f"line {first} of {place.day} is" if first == last else f"lines {first} to {last} of {place.day} are"
    )
    return Found(Flaw.MISSING, f"{lines} missing before it")


def _distinct(heads: Iterable[KeptHead]) -> Iterable[KeptHead]:
    """Each head once, though it was kept several times: when its day was open, and when it had ended."""
    ended_last = sorted(heads, key=lambda head: not head.open)
    return {(head.tenant_id, head.day, head.sequence, head.hash): head for head in ended_last}.values()


def _day_after(day: str) -> str:
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()
