"""The posted part of a journal goes back to the disk while its process lives; what follows stays whole."""

from __future__ import annotations

from errno import EOPNOTSUPP
from pathlib import Path

import pytest

from app.core.ids import IncarnationId
from billing.journal.hole import BLOCK_BYTES, STEP_BYTES, punch
from billing.journal.model import Record
from billing.journal.settler import Settler
from billing.journal.writer import JournalWriter
from tests.billing.journal import journals
from tests.billing.journal.shop import Shop, settled

BULK = ({"told": "x" * 200_000},)
"""Attempts of a request that make its record long."""


async def busy(shop: Shop, folder: Path, incarnation_id: IncarnationId, *more: Record) -> JournalWriter:
    """A live journal of two megabytes of ended requests, and then `more`."""
    records: list[Record] = []
    for _ in range(10):
        admitted = shop.catalogue.admitted()
        records += [admitted, settled(admitted, attempts=BULK)]
    return await journals.live(folder, incarnation_id, *records, *more, clock=shop.clock)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


async def test_what_is_posted_takes_no_space_and_what_is_open_is_still_read(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    open_, last = shop.catalogue.admitted(), shop.catalogue.admitted()
    writer = await busy(shop, tmp_path, incarnation_id, open_, last, settled(last))
    size = writer.path.stat().st_size
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 11
    assert writer.path.stat().st_size == size > STEP_BYTES
    assert on_disk(writer.path) < size - STEP_BYTES
    settler.close()
    again = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    late = shop.catalogue.admitted()
    await journals.add(writer, late, settled(late))
    assert await again.look() == 1
    await writer.close()
    assert await again.look() == 1
    assert (await shop.events(incarnation_id))[open_.request_id] == ("lost", 0)
    assert await shop.outstanding(incarnation_id) == 0
    assert b"steelyard_settler_unfreed_journals 0.0" in again.metrics.render()
    await shop.assert_the_books_agree()


async def test_an_open_request_keeps_its_records_and_all_behind_them(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    open_ = shop.catalogue.admitted()
    writer = await journals.live(tmp_path, incarnation_id, open_, clock=shop.clock)
    for _ in range(10):
        admitted = shop.catalogue.admitted()
        await journals.add(writer, admitted, settled(admitted, attempts=BULK))
    data = writer.path.read_bytes()
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    assert writer.path.read_bytes() == data
    settler.close()
    await writer.close()


async def test_a_journal_whose_position_is_forgotten_after_its_beginning_was_freed_is_not_taken_for_empty(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    writer = await busy(shop, tmp_path, incarnation_id)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    settler.close()
    await writer.close()
    async with shop.owner.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM journal_position")
    again = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await again.look()
    assert await shop.rows("SELECT incarnation_id FROM journal_damage") == [incarnation_id]
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]


async def test_a_disk_that_gives_nothing_back_is_told_of_and_nothing_else_fails(
    shop: Shop, tmp_path: Path
) -> None:
    tries: list[int] = []

    def refuse(_path: Path, *, end: int) -> None:
        tries.append(end)
        raise OSError(EOPNOTSUPP, "not here")

    incarnation_id = await shop.incarnation()
    writer = await busy(shop, tmp_path, incarnation_id)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock, punch=refuse)
    assert await settler.look() == 10
    more = shop.catalogue.admitted()
    await journals.add(writer, more, settled(more))
    assert await settler.look() == 1
    assert b"steelyard_settler_unfreed_journals 1.0" in settler.metrics.render()
    assert len(tries) == 1, "it is tried once a journal"
    settler.close()
    await writer.close()


def test_only_whole_blocks_before_the_end_are_freed_and_not_the_first(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5 * BLOCK_BYTES)
    punch(path, end=3 * BLOCK_BYTES + 17)
    assert path.read_bytes().replace(b"\0", b".") == b"".join(
        byte * BLOCK_BYTES for byte in (b"x", b".", b".", b"x", b"x")
    )


def test_what_can_not_be_written_can_not_be_freed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        punch(tmp_path, end=BLOCK_BYTES)
