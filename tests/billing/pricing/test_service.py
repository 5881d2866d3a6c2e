"""Price books without any face: what the database itself refuses, and what a lookup finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core import ids
from app.core.database import connect_engine
from app.core.errors import Conflict, Rejected
from app.core.ids import ModelId, PriceBookId, PriceVersionId
from billing.metering.model import Meter
from billing.pricing import service
from billing.pricing.model import Price
from tests.database import Database

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    opened = connect_engine(database.app_url)
    yield opened
    await opened.dispose()


async def _offer_nothing() -> Iterable[ModelId]:
    return ()


async def _model(engine: AsyncEngine) -> ModelId:
    made = ids.model_id()
    row = text(
        "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens)"
        " VALUES (:id, 'a', 10, 5, 5)"
    )
    async with engine.begin() as connection:
        await connection.execute(row, {"id": made})
    return made


async def _published(engine: AsyncEngine) -> tuple[PriceBookId, PriceVersionId, ModelId]:
    model_id = await _model(engine)
    async with engine.begin() as connection:
        book = await service.create_book(connection, name="list", currency="USD", is_default=True)
        draft = await service.create_version(connection, book.id)
        prices = [Price(model_id, meter, 540_000) for meter in Meter]
        await service.put_prices(connection, draft.id, prices=prices)
        await service.publish(connection, draft.id, effective_from=None, now=NOW, on_offer=_offer_nothing)
    return book.id, draft.id, model_id


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE price SET micros_per_mtok = 1",
        "DELETE FROM price",
        "UPDATE price_version SET effective_from = effective_from - interval '1 day'",
        "UPDATE price_version SET status = 'draft'",
        "DELETE FROM price_version",
    ],
)
async def test_the_database_itself_keeps_a_published_version_as_it_is(
    engine: AsyncEngine, statement: str
) -> None:
    await _published(engine)
    with pytest.raises(DBAPIError, match="history stands"):
        async with engine.begin() as connection:
            await connection.execute(text(statement))


async def test_the_database_itself_refuses_two_versions_at_one_time(engine: AsyncEngine) -> None:
    book_id, _, _ = await _published(engine)
    rival = text(
        "INSERT INTO price_version (id, price_book_id, status, effective_from, published_at)"
        " VALUES ('pbv_rival', :book, 'published', :start, now())"
    )
    with pytest.raises(DBAPIError, match="exclusion"):
        async with engine.begin() as connection:
            await connection.execute(rival, {"book": book_id, "start": NOW + timedelta(days=9)})


async def test_a_scheduled_version_without_the_model_keeps_it_from_being_offered(engine: AsyncEngine) -> None:
    book_id, _, model_id = await _published(engine)
    other = ids.model_id()
    async with engine.begin() as connection:
        await service.require_full_price(connection, model_id, now=NOW)
        with pytest.raises(Rejected) as lacking:
            await service.require_full_price(connection, other, now=NOW)
    assert len(lacking.value.facts["missing"]) == len(Meter)
    copy = text(
        "INSERT INTO model (id, name, context_limit, max_output_tokens, default_output_tokens)"
        " VALUES (:id, 'b', 10, 5, 5)"
    )
    async with engine.begin() as connection:
        await connection.execute(copy, {"id": other})
        later = await service.create_version(connection, book_id)
        prices = [Price(other, meter, 1) for meter in Meter]
        await service.put_prices(connection, later.id, prices=prices)
        start = NOW + timedelta(days=30)
        await service.publish(connection, later.id, effective_from=start, now=NOW, on_offer=_offer_nothing)
        with pytest.raises(Rejected) as ending:
            await service.require_full_price(connection, model_id, now=NOW)
    assert {gap["model_id"] for gap in ending.value.facts["missing"]} == {model_id}


async def test_a_version_that_does_not_exist_cannot_be_priced_or_published(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        unknown = ids.price_version_id()
        assert await service.find_version(connection, unknown) is None
        with pytest.raises(Rejected):
            await service.put_prices(connection, unknown, prices=[])
        past = NOW - timedelta(seconds=1)
        with pytest.raises(Conflict):
            await service.publish(connection, unknown, effective_from=past, now=NOW, on_offer=_offer_nothing)
