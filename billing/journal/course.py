"""The course of one journal: what is read of it, what is open, what is posted.

Nothing leaves its chunk before its transaction is committed, and each transaction leaves the position
from which a restarted settler reads again. So a failure anywhere costs a repetition, which changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.clock import Clock, from_ms
from app.core.ids import IncarnationId, RequestId
from billing.journal import damages, parking
from billing.journal.facts import Facts
from billing.journal.failures import REFUSALS, is_poison, is_repeat, words
from billing.journal.hole import STEP_BYTES
from billing.journal.join import Charge, Entry, Joiner, Refusal, WrongJournal
from billing.journal.metrics import SettlerMetrics
from billing.journal.posting import Batch, Position, Posted, advance, park, post
from billing.journal.tail import Damage, JournalTail, State

log = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs what blocks beside the loop, as `asyncio.to_thread` does; a simulation runs it in place."""

    def __call__(
        self, work: Callable[P, T], /, *args: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...


class Punch(Protocol):
    """Frees a file's blocks before `end`. Raises OSError where it can't."""

    def __call__(self, path: Path, *, end: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What the courses of one settler share.   batch: most entries of one transaction."""

    engine: AsyncEngine
    clock: Clock
    metrics: SettlerMetrics
    batch: int
    punch: Punch
    run_blocking: RunBlocking = asyncio.to_thread
    facts: Facts = field(default_factory=Facts)

    def now(self) -> datetime:
        return from_ms(self.clock.now_ms())


class Chunk(NamedTuple):
    """What one reading completed.   oldest: what was open after it, so from where a restart reads again."""

    entries: list[Entry]
    oldest: int | None


class Course:
    """One journal on its way into the database.

    known: requests of this journal that have ever been parked.   can_free: False once the disk has refused
    to take back what nobody reads again.
    """

    def __init__(
        self, tail: JournalTail, *, posted: int, desk: Desk, known: set[RequestId] | None = None
    ) -> None:
        self.tail = tail
        self.joiner = Joiner(tail.incarnation_id)
        self.events = 0
        self.can_free = True
        self._posted = posted
        self._resume = tail.offset
        self._freed = 0
        self._desk = desk
        self._parked = set() if known is None else known
        self._chunks: deque[Chunk] = deque()
        self._last_ms: int | None = None
        self._all_new = True
        self._identified = False

    @property
    def incarnation_id(self) -> IncarnationId:
        return self.tail.incarnation_id

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest settlement happened that is not posted; None if all that was there is.

        Between two readings it is that of the last one posted: what follows has not been looked at.
        """
        for chunk in self._chunks:
            for entry in chunk.entries:
                match entry:
                    case Charge(settled=settled):
                        return settled.at_ms
                    case Refusal(refused=refused):
                        return refused.at_ms
        return self._last_ms

    async def catch_up(self) -> None:
        """Read and post what there is, reading the next chunk while the database takes this one.

        Of a live journal no more than what was there at the beginning: a busy writer never ends, and
        other journals wait. Of a dead one all.
        """
        await self._post_chunks()
        going = await self._read()
        while going:
            ahead = asyncio.ensure_future(self._read()) if self._goes_on() else None
            try:
                await self._post_chunks(most=1)
            finally:
                going = ahead is not None and await ahead
        await self._post_chunks()
        self._last_ms = None

    async def post_all(self, entries: list[Entry]) -> None:
        """Post entries that no reading gave."""
        self._chunks.append(Chunk(entries, self.joiner.oldest))
        await self._post_chunks()

    async def free(self) -> None:
        """Give the disk what lies before the committed position from which a restart would read."""
        if not self.can_free or self._resume - self._freed < STEP_BYTES or not self.tail.in_place:
            return
        try:
            await self._desk.run_blocking(self._desk.punch, self.tail.path, end=self._resume)
        except OSError as error:
            self.can_free = False
            log.warning(
                "journal_not_freed", extra={"incarnation_id": self.incarnation_id, "reason": str(error)}
            )
        self._freed = self._resume

    def _goes_on(self) -> bool:
        return self.tail.more or self.tail.state is State.DEAD

    async def _read(self) -> bool:
        """Take the next frames in; False at the end of what there is."""
        was = self.tail.state
        chunk = await self._desk.run_blocking(self._take_chunk)
        while self.tail.damage is not None:
            await self._pass_over(self.tail.damage)
            chunk = await self._desk.run_blocking(self._take_chunk)
        if chunk is not None:
            self._chunks.append(chunk)
        if self.tail.state is State.STOPPED and was is not State.STOPPED:
            facts = {"incarnation_id": self.incarnation_id, "reason": self.tail.stopped_because}
            log.critical("journal_stopped", extra={**facts, "offset": self.tail.offset})
        return chunk is not None and self.tail.state is not State.STOPPED

    def _take_chunk(self) -> Chunk | None:
        """The entries of the next frames; None if there are none. Blocks, beside the loop."""
        if not self._identified and not self._identify():
            return None
        frames = self.tail.read()
        if not frames:
            return None
        entries: list[Entry] = []
        take = self.joiner.take
        for frame in frames:
            try:
                entry = take(frame)
            except WrongJournal as error:
                self.tail.stop(str(error))
                break
            if entry is not None and entry.end > self._posted:
                entries.append(entry)
        return Chunk(entries, self.joiner.oldest)

    def _identify(self) -> bool:
        """Whether the file is what its name says, before anything is read from its middle."""
        self._identified = True
        head = self.tail.head()
        try:
            if head is not None:
                self.joiner.check_head(head)
        except WrongJournal as error:
            self.tail.stop(str(error))
        return self.tail.state is not State.STOPPED

    def _was_parked(self, entry: Entry) -> bool:
        """Whether it is in someone's hands: a charge that was parked is posted by a retry alone."""
        return bool(self._parked) and isinstance(entry, Charge) and entry.admitted.request_id in self._parked

    async def _pass_over(self, damage: Damage) -> None:
        """Record a damage, then read on behind it. The incarnation stays open until someone has looked."""
        desk = self._desk
        async with desk.engine.begin() as connection:
            await damages.tell(connection, self.incarnation_id, damage=damage, now=desk.now())
        await desk.run_blocking(self.tail.pass_over)
        facts = {"incarnation_id": self.incarnation_id, "start": damage.start, "end": damage.end}
        log.critical("journal_damaged", extra=facts)

    async def _post_chunks(self, *, most: int | None = None) -> None:
        """Post chunks in their order, batch by batch, taking off what is committed."""
        while self._chunks and most != 0:
            chunk = self._chunks[0]
            while chunk.entries:
                batch = chunk.entries[: self._desk.batch]
                await self._post(batch, later=chunk.entries[self._desk.batch :], oldest=chunk.oldest)
                self._last_ms = self.oldest_ms
                del chunk.entries[: len(batch)]
            self._chunks.popleft()
            most = None if most is None else most - 1

    async def _post(self, entries: Sequence[Entry], *, later: Sequence[Entry], oldest: int | None) -> None:
        """Post in one transaction; if the database refuses a row, halve until it is alone, and park it."""
        position = self._position(entries, later, oldest=oldest)
        batch = Batch(self.incarnation_id, [e for e in entries if not self._was_parked(e)], position)
        try:
            posted = await self._try(batch)
        except REFUSALS as error:
            if not is_poison(error):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                await self._post(entries[:middle], later=[*entries[middle:], *later], oldest=oldest)
                await self._post(entries[middle:], later=later, oldest=oldest)
                return
            posted = await self._park(batch, words(error))
        self._posted = max(self._posted, batch.position.posted)
        self._resume = max(self._resume, batch.position.resume)
        self._tell(posted)
        if posted.parked:
            async with self._desk.engine.connect() as connection:
                self._parked = await parking.of(connection, self.incarnation_id)

    async def _try(self, batch: Batch) -> Posted:
        """Post a batch as if all of it were new, as it is but after a lost position; else with more care."""
        if self._all_new:
            try:
                return await self._commit(batch, all_new=True)
            except REFUSALS as error:
                if not is_repeat(error):
                    raise
        posted = await self._commit(batch, all_new=False)
        self._all_new = posted.repeats == posted.conflicts == 0
        return posted

    async def _commit(self, batch: Batch, *, all_new: bool) -> Posted:
        desk = self._desk
        async with desk.engine.begin() as connection:
            return await post(connection, batch, facts=desk.facts, now=desk.now(), all_new=all_new)

    async def _park(self, batch: Batch, reason: str) -> Posted:
        desk = self._desk
        async with desk.engine.begin() as connection:
            flawed = [(entry, reason) for entry in batch.entries]
            number = await park(connection, flawed, incarnation_id=batch.incarnation_id, now=desk.now())
            await advance(connection, batch.incarnation_id, position=batch.position, now=desk.now())
        return Posted(parked=number)

    def _position(self, entries: Sequence[Entry], later: Sequence[Entry], *, oldest: int | None) -> Position:
        """After `entries`: a restart reads again from whatever is open, or read and not posted."""
        posted = max(self._posted, entries[-1].end)
        waiting = [entry.start for entry in later] if oldest is None else [oldest, *(e.start for e in later)]
        return Position(posted, min([posted, *waiting]))

    def _tell(self, posted: Posted) -> None:
        self.events += posted.events
        self._desk.metrics.count(posted)
        if posted.conflicts or posted.parked or posted.unleased:
            facts = {name: getattr(posted, name) for name in ("conflicts", "parked", "unleased")}
            log.error("settler_set_aside", extra={"incarnation_id": self.incarnation_id, **facts})
