"""The course of one journal: what is read of it, what is open, what is posted.

Nothing leaves `pending` before its transaction is committed, and each transaction leaves the position
from which a restarted settler reads again. So a failure anywhere costs a repetition, which changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.clock import Clock, from_ms
from app.core.ids import IncarnationId
from billing.journal.facts import Facts
from billing.journal.failures import REFUSALS, is_poison, words
from billing.journal.hole import STEP_BYTES
from billing.journal.join import Charge, Entry, Joiner, Refusal, WrongJournal
from billing.journal.metrics import SettlerMetrics
from billing.journal.posting import Batch, Position, Posted, advance, park, post
from billing.journal.tail import JournalTail, State

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


class Course:
    """One journal on its way into the database.   posted: where the file is done with, in bytes.

    can_free: False once the disk has refused to take back what nobody reads again.
    """

    def __init__(self, tail: JournalTail, *, posted: int, desk: Desk) -> None:
        self.tail = tail
        self.joiner = Joiner(tail.incarnation_id)
        self.events = 0
        self.can_free = True
        self._posted = posted
        self._resume = tail.offset
        self._freed = 0
        self._desk = desk
        self._pending: list[Entry] = []

    @property
    def incarnation_id(self) -> IncarnationId:
        return self.tail.incarnation_id

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest settlement happened that is read and not posted."""
        match self._pending[0] if self._pending else None:
            case Charge(settled=settled):
                return settled.at_ms
            case Refusal(refused=refused):
                return refused.at_ms
        return None

    async def catch_up(self) -> None:
        """Read and post what there is.

        Of a live journal no more than what was there at the beginning: a busy writer never ends, and
        other journals wait. Of a dead one all.
        """
        await self.post_all(self._pending)
        while await self._read() and (self.tail.more or self.tail.state is State.DEAD):
            await self.post_all(self._pending)
        await self.post_all(self._pending)

    async def post_all(self, entries: list[Entry]) -> None:
        """Post entries batch by batch, taking each off the list once it is committed."""
        while entries:
            await self._post(entries[: self._desk.batch], later=entries[self._desk.batch :])
            del entries[: self._desk.batch]

    async def free(self) -> None:
        """Give the disk what lies before the committed position from which a restart would read."""
        if not self.can_free or self._resume - self._freed < STEP_BYTES:
            return
        try:
            await self._desk.run_blocking(self._desk.punch, self.tail.path, end=self._resume)
        except OSError as error:
            self.can_free = False
            log.warning(
                "journal_not_freed", extra={"incarnation_id": self.incarnation_id, "reason": str(error)}
            )
        self._freed = self._resume

    async def _read(self) -> bool:
        """Take the next frames in; False at the end of what there is."""
        was = self.tail.state
        frames = await self._desk.run_blocking(self.tail.read)
        for frame in frames:
            try:
                entry = self.joiner.take(frame)
            except WrongJournal as error:
                await self._desk.run_blocking(self.tail.stop, str(error))
                break
            if entry is not None and entry.end > self._posted:
                self._pending.append(entry)
        if self.tail.state is State.STOPPED and was is not State.STOPPED:
            facts = {"incarnation_id": self.incarnation_id, "reason": self.tail.stopped_because}
            log.critical("journal_stopped", extra={**facts, "offset": self.tail.offset})
        return bool(frames) and self.tail.state is not State.STOPPED

    async def _post(self, entries: Sequence[Entry], *, later: Sequence[Entry]) -> None:
        """Post in one transaction; if the database refuses a row, halve until it is alone, and park it."""
        batch = Batch(self.incarnation_id, entries, self._position(entries, later))
        desk = self._desk
        try:
            async with desk.engine.begin() as connection:
                posted = await post(connection, batch, facts=desk.facts, now=desk.now())
        except REFUSALS as error:
            if not is_poison(error):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                await self._post(entries[:middle], later=[*entries[middle:], *later])
                await self._post(entries[middle:], later=later)
                return
            posted = await self._park(batch, words(error))
        self._posted = max(self._posted, batch.position.posted)
        self._resume = max(self._resume, batch.position.resume)
        self._tell(posted)

    async def _park(self, batch: Batch, reason: str) -> Posted:
        desk = self._desk
        async with desk.engine.begin() as connection:
            flawed = [(entry, reason) for entry in batch.entries]
            number = await park(connection, flawed, incarnation_id=batch.incarnation_id, now=desk.now())
            await advance(connection, batch.incarnation_id, position=batch.position, now=desk.now())
        return Posted(parked=number)

    def _position(self, entries: Sequence[Entry], later: Sequence[Entry]) -> Position:
        """After `entries`: a restart reads again from whatever is open, or read and not posted."""
        posted = max(self._posted, entries[-1].end)
        waiting = [entry.start for entry in later]
        oldest = self.joiner.oldest
        return Position(posted, min([posted, *waiting, *([] if oldest is None else [oldest])]))

    def _tell(self, posted: Posted) -> None:
        self.events += posted.events
        self._desk.metrics.count(posted)
        if posted.conflicts or posted.parked or posted.unleased:
            facts = {name: getattr(posted, name) for name in ("conflicts", "parked", "unleased")}
            log.error("settler_set_aside", extra={"incarnation_id": self.incarnation_id, **facts})
