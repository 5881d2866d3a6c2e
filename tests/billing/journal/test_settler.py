"""The settler posts what journals say, once, in one transaction with all that follows from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.core.ids import IncarnationId
from billing.journal.model import Record, Settled
from billing.journal.settler import Settler
from billing.journal.writer import JournalWriter
from tests.billing.journal.shop import DEPOSIT, Shop, settled


async def write(shop: Shop, folder: Path, incarnation_id: IncarnationId, *records: Record) -> JournalWriter:
    """A live journal that holds the records, durable."""
    writer = JournalWriter.create(folder, incarnation_id=incarnation_id, clock=shop.clock, commit_ms=1)
    await add(writer, *records)
    return writer


async def add(writer: JournalWriter, *records: Record) -> None:
    """Append records and wait until they are in the file."""
    wanted = writer.records + len(records)
    for record in records:
        if isinstance(record, Settled):
            writer.settle(record, lambda durable: None)
        else:
            writer.append(record)
    while writer.records < wanted:
        await asyncio.sleep(0.001)


async def test_a_settlement_becomes_an_event_a_roll_up_a_ledger_entry_and_a_spent_lease(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    end = settled(admitted)
    writer = await write(shop, tmp_path, incarnation_id, admitted, end)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 1
    assert await shop.events(incarnation_id) == {admitted.request_id: ("completed", end.cost_picos)}
    balance = await shop.balance()
    assert balance.posted == DEPOSIT - end.cost_picos
    assert balance.held == DEPOSIT // 100 - end.cost_picos
    await shop.assert_the_books_agree()
    await writer.close()
    assert await settler.look() == 0
    assert await shop.outstanding(incarnation_id) == 0
    settler.close()
