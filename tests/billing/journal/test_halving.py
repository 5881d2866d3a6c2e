"""A batch with rows that the database refuses is halved; a death anywhere in it changes nothing."""

from __future__ import annotations

from pathlib import Path

from app.core.clock import ManualClock
from app.core.ids import IncarnationId
from billing.journal.model import Admitted, Record, Settled
from billing.journal.settler import Settler
from tests.billing.journal import journals
from tests.billing.journal.shop import NOW_MS, Shop, settled


class Killed(BaseException):
    """The process is no more: nothing that catches errors sees it."""


class MortalClock(ManualClock):
    """A clock whose reader is killed as it looks at it for the n-th time: in the middle of a transaction."""

    def __init__(self, uses: int) -> None:
        super().__init__(NOW_MS + 60_000)
        self._left = uses

    def now_ms(self) -> int:
        if self._left == 0:
            raise Killed
        self._left -= 1
        return super().now_ms()


def refused(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, duration_ms=-1)


async def test_a_settler_killed_anywhere_in_the_halving_posts_and_parks_each_record_once(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    good = [shop.catalogue.admitted() for _ in range(5)]
    pairs = [(admitted, settled(admitted)) for admitted in good]
    pairs[1:1] = [refused(shop)]
    pairs[4:4] = [refused(shop)]
    bad = {admitted.request_id for admitted, _ in pairs} - {admitted.request_id for admitted in good}
    records: list[Record] = [record for pair in pairs for record in pair]
    path = journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    deaths = 0
    while path.exists():
        deaths += await _life(shop, tmp_path, uses=1 + deaths % 7)
    assert deaths > 4
    assert set(await shop.events(incarnation_id)) == {admitted.request_id for admitted in good}
    parked = await shop.rows("SELECT request_id FROM parked_record")
    assert (len(parked), set(parked)) == (2, bad)
    held = [settled(admitted).cost_picos for admitted, _ in pairs if admitted.request_id in bad]
    assert await shop.outstanding(incarnation_id) == sum(held)
    await shop.assert_the_books_agree()


async def test_what_is_parked_is_not_posted_by_reading_its_journal_again(shop: Shop, tmp_path: Path) -> None:
    """Not even if what was wrong with it has been mended meanwhile: it is posted by a retry, or never."""
    incarnation_id = await shop.incarnation()
    pair = refused(shop)
    frames = journals.frames(incarnation_id, list(pair))
    journals.dead(tmp_path, incarnation_id, b"".join(frames))
    await Settler(shop.engine, folder=tmp_path, clock=shop.clock).look()
    mended = [pair[0], settled(pair[0])]
    await _forget_position(shop, incarnation_id)
    journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, mended)))
    assert await Settler(shop.engine, folder=tmp_path, clock=shop.clock).look() == 0
    assert await shop.rows("SELECT count(*) FROM usage_event") == [0]
    assert await shop.rows("SELECT count(*) FROM parked_record") == [1]


async def test_a_request_in_the_journals_of_two_incarnations_is_charged_once(
    shop: Shop, tmp_path: Path
) -> None:
    first, second = await shop.incarnation(), await shop.incarnation()
    charges = [shop.catalogue.admitted() for _ in range(4)]
    records: list[Record] = [record for admitted in charges for record in (admitted, settled(admitted))]
    for incarnation_id, part in ((first, records[:6]), (second, records[2:])):
        journals.dead(tmp_path, incarnation_id, b"".join(journals.frames(incarnation_id, part)))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock, batch=2)
    assert await settler.look() == 4
    assert await shop.rows("SELECT count(*) FROM usage_event") == [4]
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    assert settler.metrics.repeats.collect()[0].samples[0].value == 2
    assert await shop.outstanding(first) == await shop.outstanding(second) == 0
    await shop.assert_the_books_agree()


async def _life(shop: Shop, folder: Path, *, uses: int) -> int:
    """One settler's life; 1 if it was killed."""
    settler = Settler(shop.engine, folder=folder, clock=MortalClock(uses))
    try:
        await settler.look()
    except Killed:
        return 1
    finally:
        settler.close()
    return 0


async def _forget_position(shop: Shop, incarnation_id: IncarnationId) -> None:
    async with shop.owner.begin() as connection:
        await connection.exec_driver_sql(
            f"DELETE FROM journal_position WHERE incarnation_id = '{incarnation_id}'"
        )
