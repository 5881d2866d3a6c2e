"""The end of a journal: orphans judged, open requests settled as lost, the incarnation closed."""

from __future__ import annotations

import logging

from billing.journal import conflicts, damages, parking
from billing.journal.course import Course, Desk
from billing.journal.join import Entry
from billing.journal.posting import Posted, park
from billing.quota import authority

log = logging.getLogger(__name__)


async def judge_orphans(course: Course, desk: Desk, *, dying: bool = False) -> None:
    """Take care of settlements without an admission.

    If the request has an event they are repeats or conflicts, if it is parked they are known; if neither,
    the admission may still come, until the journal ends: then they are parked.
    """
    orphans = course.joiner.orphans
    if not orphans:
        return
    wanted = {orphan.settled.request_id for orphan in orphans}
    async with desk.engine.begin() as connection:
        known = await conflicts.hashes(connection, wanted)
        done = [orphan for orphan in orphans if orphan.settled.request_id in known]
        told = [
            await conflicts.tell_unless_same(
                connection,
                orphan,
                incarnation_id=course.incarnation_id,
                posted=known[orphan.settled.request_id],
                now=desk.now(),
            )
            for orphan in done
        ]
        parked = await parking.among(connection, course.incarnation_id, request_ids=wanted)
        done += [orphan for orphan in orphans if orphan.settled.request_id in parked - known.keys()]
        flawed = [(orphan, "its admission is missing") for orphan in orphans if dying and orphan not in done]
        number = await park(connection, flawed, incarnation_id=course.incarnation_id, now=desk.now())
    desk.metrics.count(Posted(conflicts=sum(told), parked=number))
    if sum(told) or number:
        facts = {"incarnation_id": course.incarnation_id, "conflicts": sum(told), "parked": number}
        log.error("settler_set_aside", extra=facts)
    for orphan in done:
        course.joiner.forget(orphan)


async def bury(course: Course, desk: Desk) -> bool:
    """Post the end of a journal whose writer is proven dead, and close its incarnation. Idempotent.

    Returns whether it was closed: a damaged one stays open, until an operator has looked.
    """
    await judge_orphans(course, desk, dying=True)
    lost = await _lost(course, desk)
    number = len(lost)
    await course.post_all([*lost])
    desk.metrics.lost.inc(number)
    async with desk.engine.begin() as connection:
        await authority.lock(connection, course.incarnation_id)
        damaged = await damages.holds_open(connection, course.incarnation_id)
        if not damaged:
            parked = await parking.holds(connection, course.incarnation_id)
            await authority.close(connection, course.incarnation_id, parked=parked)
    event = "incarnation_kept_open" if damaged else "incarnation_closed"
    log.info(event, extra={"incarnation_id": course.incarnation_id, "lost": number})
    return not damaged


async def _lost(course: Course, desk: Desk) -> list[Entry]:
    """The open requests that nobody settled: neither posted nor parked already."""
    candidates = course.joiner.lost(course.tail.offset)
    wanted = {charge.admitted.request_id for charge in candidates}
    if not wanted:
        return []
    async with desk.engine.connect() as connection:
        done = set(await conflicts.hashes(connection, wanted))
        done |= await parking.among(connection, course.incarnation_id, request_ids=wanted)
    return [charge for charge in candidates if charge.admitted.request_id not in done]
