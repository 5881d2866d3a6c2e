"""From the wire to the ledger: each act is charged once, at the price of its time, by who served it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import create_async_engine

from app.core.ids import ModelId, PriceBookId
from billing.ledger.proofs import drifts
from billing.metering.model import Meter
from billing.pricing import service as pricing
from billing.pricing.model import Price
from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import Fault, FaultKind, Options
from tests.app.gateway.house import PRICES, SERVED, Seeded, add_backend, chat, execute, open_house
from tests.database import Database
from tests.field.pair import until
from tests.field.replay import Ending, Script, counts, says, whole
from tests.field.stand import open_stand, post_all, rows

_CHAT = "/v1/chat/completions"
_EVENT = "SELECT * FROM usage_event WHERE request_id = $1"
_REVENUE = """
SELECT coalesce(sum(e.amount), 0) AS picos FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id
WHERE a.kind = 'revenue'
"""


async def _books_are_true(database: Database) -> bool:
    """Whether events, ledger and allowances tell the same balances."""
    engine = create_async_engine(database.owner_sqlalchemy_url)
    try:
        async with engine.connect() as connection:
            return not await drifts(connection)
    finally:
        await engine.dispose()


async def test_an_aborted_stream_is_a_row_with_its_tokens_and_a_charge(
    database: Database, tmp_path: Path
) -> None:
    events = [says("a", usage=counts(30, at)) for at in range(1, 8)]
    async with open_stand(database, tmp_path) as stand:
        _, settled = await stand.cut("aborted", Script(events=events, ending=Ending.HOLD))
    await post_all(database, tmp_path)
    (event,) = await rows(database, _EVENT, settled.request_id)
    cost = 30 * PRICES[Meter.INPUT] + 7 * PRICES[Meter.OUTPUT]
    assert (event["outcome"], event["usage_source"]) == ("client_cancelled", "engine_partial")
    assert (event["input"], event["output"]) == (30, 7)
    assert event["cost"] == cost
    assert event["transaction_id"] is not None
    assert await _books_are_true(database)


async def test_an_estimate_is_the_same_number_in_log_event_roll_up_and_balance(
    database: Database, tmp_path: Path
) -> None:
    async with open_stand(database, tmp_path, engine="llama-server") as stand:
        stand.replay.tokenize = lambda path, _asked: (
            {"prompt": "p"} if path == "/apply-template" else {"tokens": list(range(300_000))}
        )
        script = Script(events=[says("a")], ending=Ending.HOLD)
        _, settled = await stand.cut("lying", script, max_tokens=100)
    await post_all(database, tmp_path)
    (event,) = await rows(database, _EVENT, settled.request_id)
    (roll_up,) = await rows(database, "SELECT * FROM usage_rollup")
    (wallet,) = await rows(database, "SELECT spent FROM allowance")
    assert event["output"] == roll_up["output"] == settled.usage.output == 100
    assert event["cost"] == roll_up["cost"] == wallet["spent"] == settled.cost_picos
    assert "estimated" in event["flags"]
    assert await _books_are_true(database)


@asynccontextmanager
async def _failing_engine() -> AsyncIterator[str]:
    """The address of an engine that is healthy by its own word and cuts every request."""
    engine = SimulatedEngine(Options(model=SERVED, fault=Fault(FaultKind.RESET)))
    await engine.start("127.0.0.1", 0)
    try:
        yield engine.base_url
    finally:
        await engine.stop()


async def test_a_failover_is_two_attempts_and_one_charge(database: Database, tmp_path: Path) -> None:
    async with _failing_engine() as broken_url, open_house(database, tmp_path) as house:
        broken = await add_backend(database, house.seeded, broken_url)
        await execute(database, "UPDATE backend SET weight = 1000 WHERE id = $1", broken)

        async def is_tried_twice() -> bool:
            answer = await house.client.post(_CHAT, json=chat())
            assert answer.status_code == 200
            return len(house.settled_of(answer.headers["x-request-id"]).attempts) > 1

        await until(is_tried_twice)
        tried = house.settled()[-1]
        asked, served = len(house.admitted()), house.engine.stats
    await post_all(database, tmp_path)
    (event,) = await rows(database, _EVENT, tried.request_id)
    attempts = msgspec.json.decode(event["attempts"])
    (total,) = await rows(database, "SELECT count(*) AS n, sum(output) AS output FROM usage_event")
    assert [attempt["backend_id"] for attempt in attempts] == [broken, event["backend_id"]]
    assert attempts[0]["error_code"] is not None
    assert total["n"] == asked, "a retry is no request"
    assert total["output"] == served.generated_tokens, "only who served is paid"
    assert await _books_are_true(database)


async def _reprice(database: Database, seeded: Seeded, *, micros: int) -> str:
    """Publish a new version of the book, every class at one price, from now on."""
    engine = create_async_engine(database.owner_sqlalchemy_url)

    async def on_offer() -> list[ModelId]:
        return [ModelId(seeded.model_id)]

    try:
        async with engine.begin() as connection:
            version = await pricing.create_version(connection, PriceBookId(seeded.book_id))
            prices = [Price(ModelId(seeded.model_id), meter, micros) for meter in Meter]
            await pricing.put_prices(connection, version.id, prices=prices)
            await pricing.publish(
                connection, version.id, effective_from=None, now=datetime.now(UTC), on_offer=on_offer
            )
    finally:
        await engine.dispose()
    return version.id


async def test_a_new_price_changes_no_request_of_the_past(database: Database, tmp_path: Path) -> None:
    async with open_stand(database, tmp_path) as stand:
        script = whole("x", counts(100, 10))
        _, old = await stand.whole("first", script, max_tokens=64)
        version_id = await _reprice(database, stand.house.seeded, micros=1_000_000)

        async def is_priced_anew() -> bool:
            _, new = await stand.whole("next", script, max_tokens=64)
            return stand.house.admitted_of(new.request_id).price_version_id == version_id

        await until(is_priced_anew)
        new = stand.house.settled()[-1]
    await post_all(database, tmp_path)
    (before,) = await rows(database, _EVENT, old.request_id)
    (after,) = await rows(database, _EVENT, new.request_id)
    assert before["cost"] == 100 * PRICES[Meter.INPUT] + 10 * PRICES[Meter.OUTPUT]
    assert before["price_version_id"] == stand.house.seeded.version_id
    assert after["cost"] == 110 * 1_000_000
    assert await _books_are_true(database)


async def test_a_journal_that_is_read_again_charges_nothing_again(database: Database, tmp_path: Path) -> None:
    async with open_stand(database, tmp_path) as stand:
        _, settled = await stand.whole("once", whole("x", counts(100, 5)))
    journals = {path: path.read_bytes() for path in tmp_path.glob("*.journal")}
    await post_all(database, tmp_path)
    once = await _tally(database)
    for path, data in journals.items():
        path.write_bytes(data)
    await execute(database, "UPDATE journal_position SET resume_offset = 0")
    await post_all(database, tmp_path)
    assert await _tally(database) == once
    assert once["events"] == 1
    assert once["spent"] == settled.cost_picos
    assert await _books_are_true(database)


async def _tally(database: Database) -> dict[str, Any]:
    (events,) = await rows(database, "SELECT count(*) AS n, sum(cost) AS cost FROM usage_event")
    (wallet,) = await rows(database, "SELECT spent FROM allowance")
    (revenue,) = await rows(database, _REVENUE)
    return {
        "events": events["n"],
        "cost": events["cost"],
        "spent": wallet["spent"],
        "revenue": revenue["picos"],
    }
