"""The settler: posts a machine's journals and buries its dead processes; loses and repeats nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.clock import Clock
from app.core.ids import IncarnationId
from billing.journal import burial, damages, hole, lock, parking
from billing.journal.course import Course, Desk, Punch, RunBlocking
from billing.journal.failures import words
from billing.journal.metrics import SettlerMetrics
from billing.journal.standing import Alone, Company, Standing, together
from billing.journal.tables import journal_position
from billing.journal.tail import JournalTail, State, remove_closed
from billing.quota import authority

log = logging.getLogger(__name__)

BATCH = 20_000
"""Most entries of one transaction: about what one reading gives while there is much to catch up with."""
_KEEP_CLOSED_MS = 7 * 24 * 3600 * 1000
_CENSUS_S = 10.0
_MOST_PATIENCE_S = 0.5
"""Longest wait after a failure: the database that comes back is noticed within a second."""
_LEFTOVER_S = 60.0


class Settler:
    """Posts its share of the journals of one folder: all of them, unless it has company.

    One company per folder at a time: its processes hold a lock.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        folder: Path,
        clock: Clock,
        batch: int = BATCH,
        punch: Punch = hole.punch,
        run_blocking: RunBlocking = asyncio.to_thread,
        company: Company | None = None,
    ) -> None:
        self.metrics = SettlerMetrics()
        self.failure: str | None = None
        self._engine = engine
        self._folder = folder
        self._clock = clock
        self._company = Alone() if company is None else company
        self._desk = Desk(engine, clock, self.metrics, batch, punch, run_blocking)
        self._courses: dict[Path, Course] = {}
        self._displaced: list[Course] = []
        self._next_census = clock.monotonic()
        self._leftovers: dict[Path, float] = {}
        self.metrics.lag_s.set_function(lambda: self._overall().lag_ms(clock.now_ms()) / 1000)

    async def look(self) -> int:
        """Look at every journal once and post what is there; returns how many events were posted.

        A journal that fails does not hold up the others. Raises the first failure when all had their
        turn; the next look goes on where this one was.
        """
        events = 0
        failures: list[Exception] = []
        paths = self._company.share(await self._desk.run_blocking(self._list))
        self._displaced += await self._desk.run_blocking(self._take_displaced)
        displaced = {course.tail.path for course in self._displaced}
        places: list[Path | Course] = [*self._displaced, *(path for path in paths if path not in displaced)]
        for place in places:
            try:
                course = place if isinstance(place, Course) else await self._course_at(place)
                events += await self._look_at(course) if course is not None else 0
            except Exception as error:  # noqa: BLE001 - the rim: the journal stays, and is tried again
                failures.append(error)
        if failures:
            raise failures[0]
        await self._take_census()
        await self._sweep()
        return events

    async def run(self, stop: asyncio.Event, *, interval_s: float) -> None:
        """Look every `interval_s` until `stop`; after failures wait longer, up to half a second."""
        wait_s = interval_s
        while not stop.is_set():
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the rim: whatever it is, the journals stay
                self.metrics.retries.inc()
                self.failure = words(error)
                wait_s = min(max(wait_s * 2, 0.1), _MOST_PATIENCE_S)
                log.warning("settler_retries", extra={"reason": self.failure, "wait_s": wait_s})
            else:
                self.failure, wait_s = None, interval_s
            try:
                await asyncio.wait_for(stop.wait(), wait_s)
            except TimeoutError:
                continue

    def standing(self) -> Standing:
        """Where it stands itself."""
        courses = self._all()
        return Standing(
            oldest_ms=min((at for course in courses if (at := course.oldest_ms) is not None), default=None),
            journals=len(courses),
            stopped={
                course.incarnation_id: course.tail.stopped_because
                for course in courses
                if course.tail.state is State.STOPPED
            },
            unfreed=sum(not course.can_free for course in courses),
            failure=self.failure,
            counts=self.metrics.counts(),
        )

    def health(self) -> tuple[bool, dict[str, Any]]:
        """(ready, facts) for the probe, of the whole company."""
        return self._overall().health(self._clock.now_ms())

    def close(self) -> None:
        """Let go of all files; nothing is lost, a later settler reads them again."""
        for course in self._all():
            course.tail.close()
        self._courses.clear()
        self._displaced.clear()

    def _list(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{lock.SUFFIX}"))

    def _all(self) -> list[Course]:
        return [*self._courses.values(), *self._displaced]

    def _take_displaced(self) -> list[Course]:
        """Those whose file is not in its place any more: read on while it is open, to its writer's end.

        The writer finds out at its next sync. Until then nothing is made of what lies in its place: it has
        no lock, and would prove a living writer dead. One that was not to be read is let go of.
        """
        gone = [path for path, course in self._courses.items() if not course.tail.in_place]
        courses = [self._courses.pop(path) for path in gone]
        for course in courses:
            self.metrics.displaced.inc()
            log.critical("journal_displaced", extra={"incarnation_id": course.incarnation_id})
            if course.tail.state is State.STOPPED:
                course.tail.close()
        return [course for course in courses if course.tail.state is not State.STOPPED]

    async def _course_at(self, path: Path) -> Course | None:
        return self._courses.get(path) or await self._open(path)

    async def _look_at(self, course: Course) -> int:
        before = course.events
        await course.catch_up()
        await burial.judge_orphans(course, self._desk)
        if course.tail.state is State.LIVE and await self._desk.run_blocking(course.tail.try_bury):
            await course.catch_up()
        if course.tail.state is State.DEAD:
            closed = await burial.bury(course, self._desk)
            await self._put_away(course, "closed" if closed else "quarantine")
        else:
            await course.free()
        return course.events - before

    async def _open(self, path: Path) -> Course | None:
        incarnation_id = IncarnationId(path.name.removesuffix(lock.SUFFIX))
        at = journal_position.c
        query = select(at.posted_offset, at.resume_offset).where(at.incarnation_id == incarnation_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).one_or_none()
            known = await parking.of(connection, incarnation_id)
        posted, resume = row or (0, 0)
        try:
            tail = await self._desk.run_blocking(JournalTail, path, offset=resume, known=posted)
        except FileNotFoundError:
            return None
        course = self._courses[path] = Course(tail, posted=posted, desk=self._desk, known=known)
        return course

    async def _put_away(self, course: Course, folder_name: str) -> None:
        now_ms = self._clock.now_ms()
        await self._desk.run_blocking(course.tail.archive, folder_name, at_ms=now_ms)
        if course in self._displaced:
            self._displaced.remove(course)
        else:
            del self._courses[course.tail.path]
        await self._desk.run_blocking(remove_closed, self._folder, before_ms=now_ms - _KEEP_CLOSED_MS)

    async def _sweep(self) -> None:
        """Remove what a killed process left of a journal that it was about to create.

        A minute old and unlocked: its creator takes the lock at once. One that was only stopped meanwhile
        finds its file gone, fails, and is started anew.
        """
        now = self._clock.monotonic()
        paths = await self._desk.run_blocking(lock.list_drafts, self._folder)
        self._leftovers = {path: self._leftovers.get(path, now) for path in paths}
        for path, seen in self._leftovers.items():
            if now - seen >= _LEFTOVER_S and await self._desk.run_blocking(lock.remove_if_unlocked, path):
                log.warning("journal_draft_removed", extra={"file": path.name})

    async def _take_census(self) -> None:
        """Tell how many journals there are; now and then, count what must not be there."""
        self.metrics.take_over(together(self._company.standings()).counts)
        self.metrics.show(self._overall())
        if self._clock.monotonic() < self._next_census:
            return
        self._next_census = self._clock.monotonic() + _CENSUS_S
        async with self._engine.connect() as connection:
            self.metrics.parked_open.set(await parking.count(connection))
            self.metrics.damages_open.set(await damages.count(connection))
            self.metrics.uncovered.set(await authority.uncovered(connection))

    def _overall(self) -> Standing:
        return together([self.standing(), *self._company.standings()])
