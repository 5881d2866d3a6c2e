"""Journals that somebody removed, renamed, swapped or cut while they were in use: nothing is lost unseen."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core import ids
from app.core.clock import ManualClock
from app.core.ids import IncarnationId
from billing.journal.frames import unpack
from billing.journal.model import Admitted
from billing.journal.settler import Settler
from billing.journal.writer import JournalWriter
from tests.billing.journal import journals
from tests.billing.journal.shop import Catalogue, Shop, settled

SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def replaced(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


TAKEN = [removed, renamed, replaced]


async def durable(writer: JournalWriter, admitted: Admitted) -> bool:
    """What the writer says of a request that is admitted and settled."""
    writer.append(admitted)
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    writer.settle(settled(admitted), answer.set_result)
    return await answer


@pytest.mark.parametrize("happens", [*TAKEN, emptied])
async def test_a_writer_calls_nothing_durable_that_no_settler_will_find(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    writer = await journals.live(tmp_path, ids.incarnation_id(), clock=ManualClock())
    assert await durable(writer, SOMEONE.admitted())
    told: list[str | None] = []
    writer.on_broken = lambda: told.append(writer.failure)
    happens(writer.path)
    assert not await durable(writer, SOMEONE.admitted())
    assert not writer.writable
    assert not await durable(writer, SOMEONE.admitted())
    assert told == [writer.failure]
    await writer.close()


async def two_requests(shop: Shop, folder: Path, incarnation_id: IncarnationId) -> JournalWriter:
    """A journal with one settled request, posted, and one that runs."""
    admitted = shop.catalogue.admitted()
    return await journals.live(
        folder, incarnation_id, admitted, settled(admitted), shop.catalogue.admitted(), clock=shop.clock
    )


@pytest.mark.parametrize("happens", TAKEN)
async def test_a_settler_reads_a_journal_on_that_has_lost_its_name_and_buries_its_writer(
    shop: Shop, tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    incarnation_id = await shop.incarnation()
    writer = await two_requests(shop, tmp_path, incarnation_id)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 1
    happens(writer.path)
    late = shop.catalogue.admitted()
    await journals.add(writer, late, settled(late))
    assert await settler.look() == 1
    assert b"steelyard_settler_displaced_total 1.0" in settler.metrics.render()
    await writer.close()
    assert await settler.look() == 1
    assert await settler.look() == 0
    events = await shop.events(incarnation_id)
    assert sorted(outcome for outcome, _ in events.values()) == ["completed", "completed", "lost"]
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["closed"]
    assert await shop.outstanding(incarnation_id) == 0
    assert settler.health()[1]["journals"] == 0
    kept = (tmp_path / "closed" / writer.path.name).read_bytes()
    assert len(unpack(kept, offset=0)[0]) == 6
    await shop.assert_the_books_agree()


async def test_swapped_journals_lose_nothing_and_free_nothing_of_each_other(
    shop: Shop, tmp_path: Path
) -> None:
    incarnations = [await shop.incarnation() for _ in range(2)]
    writers = [await two_requests(shop, tmp_path, one) for one in incarnations]
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 2
    one, other = (writer.path for writer in writers)
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    for writer in writers:
        late = shop.catalogue.admitted()
        await journals.add(writer, late, settled(late))
    assert await settler.look() == 2
    for writer in writers:
        await writer.close()
    assert await settler.look() == 2
    assert await settler.look() == 0
    assert set(settler.health()[1]["stopped_journals"]) == set(incarnations), "the names lie"
    assert set(await shop.rows("SELECT status FROM incarnation")) == {"closed"}
    assert {len(await shop.events(incarnation_id)) for incarnation_id in incarnations} == {3}
    settler.close()
    await shop.assert_the_books_agree()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_journal_that_is_shorter_than_what_was_posted_of_it_is_damaged(
    shop: Shop, tmp_path: Path, restarted: bool
) -> None:
    incarnation_id = await shop.incarnation()
    writer = await two_requests(shop, tmp_path, incarnation_id)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 1
    if restarted:
        settler.close()
        settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    emptied(writer.path)
    await settler.look()
    await settler.look()
    assert await shop.rows("SELECT file_offset FROM journal_damage") == [0]
    await writer.close()
    await settler.look()
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]
    assert await shop.outstanding(incarnation_id) > 0
    await shop.assert_the_books_agree()


@pytest.mark.parametrize("kept", [0, 1, 30])
async def test_a_dead_journal_without_its_first_record_is_not_taken_for_an_idle_one(
    shop: Shop, tmp_path: Path, kept: int
) -> None:
    incarnation_id = await shop.incarnation()
    journals.dead(tmp_path, incarnation_id, journals.frames(incarnation_id, [])[0][:kept])
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    assert await shop.rows("SELECT byte_count FROM journal_damage") == [max(kept, 1)]
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]
    assert await shop.outstanding(incarnation_id) > 0
