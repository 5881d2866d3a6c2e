"""What can't be posted is set aside: parked, in conflict, or quarantined; nothing else is lost by it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from app.core import ids
from app.core.errors import Conflict, Rejected
from app.core.ids import IncarnationId
from billing.journal import conflicts, parking
from billing.journal.frames import pack
from billing.journal.model import Admitted, Held, Record, Settled, Used
from billing.journal.settler import Settler
from billing.metering.model import Usage
from billing.rating.model import Rates
from tests.billing.journal import journals
from tests.billing.journal.shop import DEPOSIT, Shop, settled

NOW = datetime(2026, 11, 30, tzinfo=UTC)


async def settle_dead(shop: Shop, folder: Path, incarnation_id: IncarnationId, *records: Record) -> Settler:
    """Write a dead journal and look at it once."""
    journals.dead(folder, incarnation_id, b"".join(journals.frames(incarnation_id, records)))
    settler = Settler(shop.engine, folder=folder, clock=shop.clock)
    await settler.look()
    return settler


def admitted_hold(admitted: Admitted) -> tuple[ids.AllowanceId, int]:
    return admitted.holds[0].allowance_id, admitted.holds[0].amount


def cheaper(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted(rates=Rates(1, 1, 1, 1))
    return admitted, settled(admitted)


def miscalculated(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, cost_picos=1, used=(Used(*admitted_hold(admitted), 1),))


def undercharged(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, used=(Used(*admitted_hold(admitted), 1),))


def without_its_hold(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, used=())


def never_held(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), holds=())
    return admitted, settled(admitted)


def unpriced(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), model_id=ids.ModelId("mdl_other"))
    return admitted, settled(admitted)


def in_another_currency(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), currency="CNY")
    return admitted, settled(admitted)


def of_another_tenant(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), tenant_id=ids.TenantId("ten_other"))
    return admitted, settled(admitted)


def with_unknown_allowance(shop: Shop) -> tuple[Admitted, Settled]:
    holds = (Held(ids.AllowanceId("alw_other"), 5),)
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), holds=holds)
    return admitted, settled(admitted)


def refused_by_the_database(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, duration_ms=-1)


def out_of_time(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, at_ms=10**18)


def beyond_a_number(shop: Shop) -> tuple[Admitted, Settled]:
    admitted = shop.catalogue.admitted()
    return admitted, settled(admitted, status=10**9)


FLAWS = [
    cheaper,
    miscalculated,
    undercharged,
    without_its_hold,
    never_held,
    unpriced,
    in_another_currency,
    of_another_tenant,
    with_unknown_allowance,
    refused_by_the_database,
    out_of_time,
    beyond_a_number,
]


def _taken(pair: tuple[Admitted, Settled]) -> int:
    """What a parked charge still takes of its lease: all of a hold of which its end does not tell."""
    admitted, end = pair
    held = admitted.holds[0].amount
    return min(held, end.used[0].used) if end.used else held


async def test_each_flawed_record_is_parked_and_every_other_one_is_posted(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    good = [shop.catalogue.admitted() for _ in range(len(FLAWS))]
    bad = [flaw(shop) for flaw in FLAWS]
    records: list[Record] = [record for pair in bad for record in pair]
    records += [record for admitted in good for record in (admitted, settled(admitted))]
    settler = await settle_dead(shop, tmp_path, incarnation_id, *records)
    assert set(await shop.events(incarnation_id)) == {admitted.request_id for admitted in good}
    parked = await shop.rows("SELECT request_id, reason FROM parked_record")
    assert {request for request, _ in parked} == {admitted.request_id for admitted, _ in bad}
    assert all(reason for _, reason in parked)
    assert settler.metrics.parked.collect()[0].samples[0].value == len(FLAWS)
    wallet = shop.wallet.allowance_id
    ours = [pair for pair in bad if any(held.allowance_id == wallet for held in pair[0].holds)]
    assert await shop.outstanding(incarnation_id) == sum(map(_taken, ours))
    await shop.assert_the_books_agree()


async def test_a_parked_record_that_was_mended_is_posted_once_and_its_hold_returns(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    late = ids.model_id()
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), model_id=late, price_version_id="pbv_late")
    end = settled(admitted)
    await settle_dead(shop, tmp_path, incarnation_id, admitted, end)
    assert await shop.outstanding(incarnation_id) == end.cost_picos
    [parked_id] = await shop.rows("SELECT id FROM parked_record")
    async with shop.engine.begin() as connection:
        with pytest.raises(Conflict, match="no published price"):
            await parking.retry(connection, parked_id, now=NOW)
    await _publish(shop, late)
    async with shop.engine.begin() as connection:
        assert (await parking.retry(connection, parked_id, now=NOW)).events == 1
        assert await parking.count(connection) == 0
        with pytest.raises(Rejected):
            await parking.retry(connection, parked_id, now=NOW)
    assert await shop.events(incarnation_id) == {admitted.request_id: ("completed", end.cost_picos)}
    assert await shop.outstanding(incarnation_id) == 0
    assert (await shop.balance()).posted == DEPOSIT - end.cost_picos
    await shop.assert_the_books_agree()


async def test_a_repaired_record_takes_nothing_of_what_another_parked_one_still_needs(
    shop: Shop, tmp_path: Path
) -> None:
    """The process freed the rest of the first hold and used it for the second."""
    late = ids.model_id()
    charges = [
        msgspec.structs.replace(
            shop.catalogue.admitted(input_bound=bound), model_id=late, price_version_id="pbv_late"
        )
        for bound in (1000, 700)
    ]
    ends = [settled(charges[0], Usage(input=10)), settled(charges[1], Usage(input=700, output=500))]
    incarnation_id = await shop.incarnation(lent=sum(end.cost_picos for end in ends))
    records = [record for pair in zip(charges, ends, strict=True) for record in pair]
    await settle_dead(shop, tmp_path, incarnation_id, *records)
    await _publish(shop, late)
    for parked_id in await shop.rows("SELECT id FROM parked_record ORDER BY file_offset"):
        async with shop.engine.begin() as connection:
            assert (await parking.retry(connection, parked_id, now=NOW)).unleased == 0
    assert await shop.rows("SELECT sum(uncovered) FROM lease") == [0]
    assert await shop.outstanding(incarnation_id) == 0
    await shop.assert_the_books_agree()


async def test_a_record_repaired_while_its_incarnation_is_being_closed_leaves_nothing_out(
    shop: Shop, tmp_path: Path
) -> None:
    late = ids.model_id()
    admitted = msgspec.structs.replace(shop.catalogue.admitted(), model_id=late, price_version_id="pbv_late")
    incarnation_id = await shop.incarnation()
    writer = await journals.live(tmp_path, incarnation_id, admitted, settled(admitted), clock=shop.clock)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    await _publish(shop, late)
    await writer.close()
    [parked_id] = await shop.rows("SELECT id FROM parked_record")
    async with shop.engine.begin() as connection:
        assert (await parking.retry(connection, parked_id, now=NOW)).events == 1
        burial = asyncio.create_task(settler.look())
        while await shop.rows("SELECT count(*) FROM pg_locks WHERE NOT granted") == [0]:
            await asyncio.sleep(0)
    await burial
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["closed"]
    assert await shop.outstanding(incarnation_id) == 0


async def test_any_number_of_requests_is_looked_up_at_once(shop: Shop) -> None:
    """More than a statement may have parameters: a process may die with that many open."""
    many = {ids.request_id() for _ in range(40_000)}
    async with shop.engine.connect() as connection:
        assert await conflicts.hashes(connection, many) == {}
        assert await parking.among(connection, ids.incarnation_id(), request_ids=many) == set()


async def _publish(shop: Shop, model_id: ids.ModelId) -> None:
    steps = [
        "INSERT INTO price_book (id, name, currency) VALUES ('pbk_late', 'late', 'USD')",
        "INSERT INTO price_version (id, price_book_id) VALUES ('pbv_late', 'pbk_late')",
        "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens) "
        f"VALUES ('{model_id}', 'late', 10, 10, 10)",
        "INSERT INTO price (price_version_id, model_id, meter, micros_per_mtok) SELECT 'pbv_late', "
        f"'{model_id}', meter, micros_per_mtok FROM price",
        "UPDATE price_version SET status = 'published', effective_from = 'epoch', published_at = 'epoch' "
        "WHERE id = 'pbv_late'",
    ]
    async with shop.owner.begin() as connection:
        for step in steps:
            await connection.execute(text(step))


async def test_a_restart_does_not_park_again_what_is_parked_or_read_it_for_ever(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    flawed, running, done = cheaper(shop), shop.catalogue.admitted(), shop.catalogue.admitted()
    moves: list[Record] = [flawed[0], running, flawed[1]]
    writer = await journals.live(tmp_path, incarnation_id, *moves, clock=shop.clock)
    for more in ([done], [settled(done)], [settled(running)]):
        settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
        await journals.add(writer, *more)
        await settler.look()
        settler.close()
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    last = shop.catalogue.admitted()
    await journals.add(writer, last, settled(last))
    await settler.look()
    assert await shop.rows("SELECT posted_offset = resume_offset FROM journal_position") == [True]
    await writer.close()
    await settler.look()
    assert await shop.rows("SELECT request_id FROM parked_record") == [flawed[0].request_id]
    assert set(await shop.events(incarnation_id)) == {running.request_id, done.request_id, last.request_id}
    assert await shop.outstanding(incarnation_id) == _taken(flawed)


async def test_a_second_settlement_that_says_otherwise_is_a_conflict_not_a_charge(
    shop: Shop, tmp_path: Path
) -> None:
    first, second = await shop.incarnation(), await shop.incarnation()
    admitted = shop.catalogue.admitted()
    end = settled(admitted)
    await settle_dead(shop, tmp_path, first, admitted, end)
    other = msgspec.structs.replace(admitted, model_name="other")
    settler = await settle_dead(shop, tmp_path, second, other, end)
    assert await shop.rows("SELECT count(*), sum(cost) = :cost FROM usage_event", cost=end.cost_picos) == [
        (1, True)
    ]
    assert await shop.rows("SELECT request_id, incarnation_id FROM usage_conflict") == [
        (admitted.request_id, second)
    ]
    assert settler.metrics.conflicts.collect()[0].samples[0].value == 1
    assert (await shop.outstanding(first), await shop.outstanding(second)) == (0, 0)
    await shop.assert_the_books_agree()


async def test_a_conflict_within_one_journal_is_told_while_its_process_lives(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    ends = settled(admitted), settled(admitted, Usage(input=1, output=1))
    writer = await journals.live(tmp_path, incarnation_id, admitted, *ends, clock=shop.clock)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 1
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [1]
    await writer.close()
    await settler.look()
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [1]
    assert await shop.rows("SELECT cost FROM usage_event") == [ends[0].cost_picos]


async def test_a_settlement_without_admission_is_parked_when_its_journal_ends(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    end = settled(shop.catalogue.admitted())
    await settle_dead(shop, tmp_path, incarnation_id, end)
    assert await shop.rows("SELECT request_id, reason FROM parked_record") == [
        (end.request_id, "its admission is missing")
    ]
    assert await shop.outstanding(incarnation_id) == end.cost_picos


async def test_a_frame_that_is_no_record_is_parked(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    frames = journals.frames(incarnation_id, [admitted, settled(admitted)])
    frames.insert(1, pack(b"\xc1 from a newer program"))
    journals.dead(tmp_path, incarnation_id, b"".join(frames))
    assert await Settler(shop.engine, folder=tmp_path, clock=shop.clock).look() == 1
    assert await shop.rows("SELECT file_offset, record FROM parked_record") == [
        (len(frames[0]), b"\xc1 from a newer program")
    ]


async def test_a_journal_with_another_name_or_of_a_newer_version_is_not_read(
    shop: Shop, tmp_path: Path
) -> None:
    named, newer = await shop.incarnation(), await shop.incarnation()
    journals.dead(tmp_path, named, b"".join(journals.frames(newer, [shop.catalogue.admitted()])))
    journals.dead(tmp_path, newer, pack(msgspec.msgpack.encode(journals.opened(newer, version=99))))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    assert set(settler.health()[1]["stopped_journals"]) == {named, newer}
    assert await shop.rows("SELECT count(*) FROM incarnation WHERE status = 'closed'") == [0]
    assert await shop.rows("SELECT count(*) FROM usage_event") == [0]
    settler.close()
