"""Price books and their versions: draft → published, full sets only, never two at one time.

A published version is frozen; its successor gives it its end. Whoever publishes a version or a
model locks the default books first, so no model slips in unpriced between the two checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import ids
from app.core.errors import Conflict, Rejected, RejectReason
from app.core.ids import ModelId, PriceBookId, PriceVersionId
from billing.metering.model import Meter
from billing.pricing.model import Gap, Price, PriceBook, PriceVersion
from billing.pricing.tables import price, price_book, price_version


async def create_book(
    connection: AsyncConnection, *, name: str, currency: str, is_default: bool = False
) -> PriceBook:
    """A new book without versions. A currency has one default book at most (a unique index says so)."""
    values = {"id": ids.price_book_id(), "name": name, "currency": currency, "is_default": is_default}
    row = (await connection.execute(insert(price_book).values(values).returning(price_book))).one()
    return PriceBook(**row._mapping)


async def find_book(connection: AsyncConnection, price_book_id: PriceBookId) -> PriceBook | None:
    row = (await connection.execute(select(price_book).where(price_book.c.id == price_book_id))).one_or_none()
    return None if row is None else PriceBook(**row._mapping)


async def find_default_book(connection: AsyncConnection, currency: str) -> PriceBook | None:
    """The book that rules tenants of a currency who have none of their own."""
    query = select(price_book).where(price_book.c.is_default, price_book.c.currency == currency)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else PriceBook(**row._mapping)


async def list_books(connection: AsyncConnection, *, after: str | None, limit: int) -> list[PriceBook]:
    """Books in the order of their making, after a given one."""
    query = select(price_book).where(price_book.c.id > (after or "")).order_by(price_book.c.id).limit(limit)
    return [PriceBook(**row._mapping) for row in await connection.execute(query)]


async def create_version(
    connection: AsyncConnection, price_book_id: PriceBookId, *, note: str = ""
) -> PriceVersion:
    """A new empty draft: a version is a full set of prices, it inherits none."""
    values = {"id": ids.price_version_id(), "price_book_id": price_book_id, "note": note}
    row = (await connection.execute(insert(price_version).values(values).returning(price_version))).one()
    return PriceVersion(**row._mapping)


async def find_version(
    connection: AsyncConnection, price_version_id: PriceVersionId, *, lock: bool = False
) -> PriceVersion | None:
    query = select(price_version).where(price_version.c.id == price_version_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    return None if row is None else PriceVersion(**row._mapping)


async def list_versions(
    connection: AsyncConnection,
    price_book_id: PriceBookId,
    *,
    drafts: bool = True,
    after: str | None,
    limit: int,
) -> list[PriceVersion]:
    """A book's versions in the order of their making, after a given one; with or without drafts."""
    query = select(price_version).where(
        price_version.c.price_book_id == price_book_id, price_version.c.id > (after or "")
    )
    if not drafts:
        query = query.where(price_version.c.status == "published")
    rows = await connection.execute(query.order_by(price_version.c.id).limit(limit))
    return [PriceVersion(**row._mapping) for row in rows]


async def list_prices(connection: AsyncConnection, price_version_id: PriceVersionId) -> list[Price]:
    """All prices of a version, by model and meter."""
    query = select(price.c.model_id, price.c.meter, price.c.micros_per_mtok).where(
        price.c.price_version_id == price_version_id
    )
    rows = await connection.execute(query.order_by(price.c.model_id, price.c.meter))
    return [Price(row.model_id, Meter(row.meter), row.micros_per_mtok) for row in rows]


async def put_prices(
    connection: AsyncConnection, price_version_id: PriceVersionId, *, prices: Sequence[Price]
) -> list[Price]:
    """Make these the prices of a draft, all of them. Raises Conflict if it is published or one is doubled."""
    await _lock_draft(connection, price_version_id)
    if len({(each.model_id, each.meter) for each in prices}) != len(prices):
        raise Conflict("A model and meter has one price in a version.", id=price_version_id)
    await connection.execute(delete(price).where(price.c.price_version_id == price_version_id))
    rows = [
        {
            "price_version_id": price_version_id,
            "model_id": each.model_id,
            "meter": each.meter.value,
            "micros_per_mtok": each.micros_per_mtok,
        }
        for each in prices
    ]
    if rows:
        await connection.execute(insert(price), rows)
    return await list_prices(connection, price_version_id)


async def publish(
    connection: AsyncConnection,
    price_version_id: PriceVersionId,
    *,
    effective_from: datetime | None,
    now: datetime,
    on_offer: Callable[[], Awaitable[Iterable[ModelId]]],
) -> PriceVersion:
    """Freeze a draft and let it rule from `effective_from` (default: now) on; its predecessor ends there.

    on_offer: tells the published models, asked for under the lock; a default book must price them all.
    Raises Rejected (`price_missing`) if a model in it lacks a class, or one on offer is not in it;
    Conflict if it is published, starts in the past or before a version published earlier.
    """
    start = effective_from or now
    if start < now:
        raise Conflict(
            "A version can't start in the past: what was served then is priced.", id=price_version_id
        )
    draft = await _lock_draft(connection, price_version_id)
    book = await _lock_book(connection, draft.price_book_id)
    prices = await list_prices(connection, price_version_id)
    needed = {each.model_id for each in prices} | (set(await on_offer()) if book.is_default else set())
    _refuse_gaps([Gap(*missing, draft.id, book.id) for missing in _missing(needed, prices)])
    if not prices:
        raise Conflict("A version without prices can't be published.", id=price_version_id)
    await _end_predecessor(connection, draft, start=start)
    values = {"status": "published", "effective_from": start, "published_at": now}
    changed = (
        update(price_version).where(price_version.c.id == draft.id).values(values).returning(price_version)
    )
    return PriceVersion(**(await connection.execute(changed)).one()._mapping)


async def require_full_price(connection: AsyncConnection, model_id: ModelId, *, now: datetime) -> None:
    """Nothing if every default book prices all classes of the model, now and in what is scheduled.

    Locks the default books for the rest of the transaction. Raises Rejected (`price_missing`) else.
    """
    query = select(price_book).where(price_book.c.is_default).order_by(price_book.c.id).with_for_update()
    books = [PriceBook(**row._mapping) for row in await connection.execute(query)]
    if not books:
        raise Rejected(RejectReason.PRICE_MISSING, "There is no default price book.", status=409)
    gaps: list[Gap] = []
    for book in books:
        versions = await _versions_from(connection, book.id, now=now)
        if not any(each.effective_from is not None and each.effective_from <= now for each in versions):
            gaps.extend(Gap(model_id, meter, None, book.id) for meter in Meter)
        for version in versions:
            prices = await list_prices(connection, version.id)
            gaps.extend(Gap(*missing, version.id, book.id) for missing in _missing({model_id}, prices))
    _refuse_gaps(gaps)


async def _versions_from(
    connection: AsyncConnection, price_book_id: PriceBookId, *, now: datetime
) -> list[PriceVersion]:
    query = select(price_version).where(
        price_version.c.price_book_id == price_book_id,
        price_version.c.status == "published",
        price_version.c.effective_to.is_(None) | (price_version.c.effective_to > now),
    )
    return [PriceVersion(**row._mapping) for row in await connection.execute(query)]


async def _end_predecessor(connection: AsyncConnection, draft: PriceVersion, *, start: datetime) -> None:
    published = (price_version.c.price_book_id == draft.price_book_id) & (
        price_version.c.status == "published"
    )
    newest = select(price_version).where(published).order_by(price_version.c.effective_from.desc()).limit(1)
    row = (await connection.execute(newest)).one_or_none()
    if row is None:
        return
    if row.effective_from >= start:
        raise Conflict(
            "A version that starts then or later is published already.",
            id=row.id,
            effective_from=row.effective_from.isoformat(),
        )
    ended = update(price_version).where(price_version.c.id == row.id).values(effective_to=start)
    await connection.execute(ended)


async def _lock_draft(connection: AsyncConnection, price_version_id: PriceVersionId) -> PriceVersion:
    version = await find_version(connection, price_version_id, lock=True)
    if version is None:
        message = f"There is no price version {price_version_id[:100]!r}."
        raise Rejected(RejectReason.NOT_FOUND, message, status=404)
    if version.status != "draft":
        raise Conflict("A published version is frozen; make a new one.", id=version.id)
    return version


async def _lock_book(connection: AsyncConnection, price_book_id: PriceBookId) -> PriceBook:
    query = select(price_book).where(price_book.c.id == price_book_id).with_for_update()
    return PriceBook(**(await connection.execute(query)).one()._mapping)


def _missing(models: set[ModelId], prices: Sequence[Price]) -> list[tuple[ModelId, Meter]]:
    priced = {(each.model_id, each.meter) for each in prices}
    return [(model, meter) for model in sorted(models) for meter in Meter if (model, meter) not in priced]


def _refuse_gaps(gaps: Sequence[Gap]) -> None:
    if gaps:
        raise Rejected(
            RejectReason.PRICE_MISSING,
            "Unknown is not zero: some classes of token have no price.",
            status=409,
            missing=[
                {"model_id": gap.model_id, "meter": gap.meter.value, "price_book_id": gap.price_book_id}
                for gap in gaps[:50]
            ],
        )
