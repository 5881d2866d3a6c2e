"""`/price-books` and `/price-versions`. Tenants see published prices of the books that can rule them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self

from fastapi import Body, Depends
from pydantic import Field

from app.catalog import models
from app.control.call import Call, Reads, Writes
from app.control.schemas import (
    Currency,
    Identifier,
    In,
    Moment,
    Name,
    Out,
    Page,
    PagingQuery,
    PriceText,
    Text,
)
from app.control.views.routes import router
from app.core.ids import PriceBookId, PriceVersionId
from app.core.money import format_price, parse_price
from app.identity.errors import invalid, not_found
from app.identity.model import Scope
from app.identity.tenants import get_tenant
from billing.metering.model import Meter
from billing.pricing import service as pricing
from billing.pricing.model import Price, PriceBook, PriceVersion

api = router("prices")


class BookIn(In):
    name: Name = Field(examples=["Standard"])
    currency: Currency = Field(examples=["USD"])
    is_default: bool = Field(False, description="Rules tenants of this currency without a book of their own.")


class BookOut(Out):
    id: str
    name: str
    currency: str
    is_default: bool
    created_at: datetime


class VersionIn(In):
    note: Text = ""


class PriceIn(In):
    model: Identifier = Field(description="Id or name.")
    meter: Meter
    price: PriceText


class PricesIn(In):
    prices: list[PriceIn] = Field(max_length=10_000, description="The full set: what isn't in it is gone.")


class PublicationIn(In):
    effective_from: Moment | None = Field(None, description="Null: now. Never in the past.")


class PriceOut(Out):
    """What a million tokens of one class cost."""

    model: str
    model_id: str
    meter: Meter
    price: str = Field(examples=["0.54"])
    currency: str


class VersionOut(Out):
    """Prices in [effective_from, effective_to)."""

    id: str
    price_book_id: str
    status: str
    effective_from: datetime | None
    effective_to: datetime | None
    note: str
    created_at: datetime
    published_at: datetime | None


class VersionDetail(VersionOut):
    currency: str
    prices: list[PriceOut]

    @classmethod
    def of(cls, version: PriceVersion, *, currency: str, prices: list[PriceOut]) -> Self:
        return cls(**vars(version), currency=currency, prices=prices)


@api.post("/price-books", status_code=201, summary="Create an empty price book")
async def create_book(body: BookIn, call: Annotated[Call, Depends(Writes(Scope.PRICES_WRITE))]) -> BookOut:
    created = await pricing.create_book(call.connection, **body.model_dump())
    call.trail.note("price_book.create", created.id, after=vars(created))
    return BookOut.model_validate(created)


@api.get("/price-books", summary="List price books")
async def list_books(
    paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.PRICES_READ))]
) -> Page[BookOut]:
    if call.within is None:
        rows = await pricing.list_books(call.connection, after=paging.after, limit=paging.fetch)
        return paging.page(rows, BookOut.model_validate)
    book = await _own_book(call)
    return paging.page([book] if book and book.id > (paging.after or "") else [], BookOut.model_validate)


@api.post("/price-books/{book_id}/versions", status_code=201, summary="Draft a version; it begins empty")
async def create_version(
    book_id: str,
    call: Annotated[Call, Depends(Writes(Scope.PRICES_WRITE))],
    body: Annotated[VersionIn | None, Body()] = None,
) -> VersionOut:
    book = await _book(call, book_id)
    created = await pricing.create_version(call.connection, book.id, note=(body or VersionIn()).note)
    call.trail.note("price_version.create", created.id, after=vars(created))
    return VersionOut.model_validate(created)


@api.get("/price-books/{book_id}/versions", summary="List a book's versions")
async def list_versions(
    book_id: str, paging: PagingQuery, call: Annotated[Call, Depends(Reads(Scope.PRICES_READ))]
) -> Page[VersionOut]:
    book = await _book(call, book_id)
    rows = await pricing.list_versions(
        call.connection, book.id, drafts=call.actor.is_staff, after=paging.after, limit=paging.fetch
    )
    return paging.page(rows, VersionOut.model_validate)


@api.get("/price-versions/{version_id}", summary="Show a version with its prices")
async def show_version(
    version_id: str, call: Annotated[Call, Depends(Reads(Scope.PRICES_READ))]
) -> VersionDetail:
    return await _detail(call, await _version(call, version_id))


@api.put("/price-versions/{version_id}/prices", summary="Set all prices of a draft")
async def put_prices(
    version_id: str, body: PricesIn, call: Annotated[Call, Depends(Writes(Scope.PRICES_WRITE))]
) -> VersionDetail:
    version = await _version(call, version_id)
    resolved = await models.resolve_models(call.connection, {each.model for each in body.prices})
    unknown = sorted({each.model for each in body.prices} - resolved.keys())
    if unknown:
        invalid(f"There is no model {unknown[0]!r}.", param="prices")
    prices = [Price(resolved[each.model], each.meter, parse_price(each.price)) for each in body.prices]
    await pricing.put_prices(call.connection, version.id, prices=prices)
    detail = await _detail(call, version)
    after = {"prices": [each.model_dump(mode="json") for each in detail.prices]}
    call.trail.note("price_version.put_prices", version.id, after=after)
    return detail


@api.post("/price-versions/{version_id}/publish", summary="Freeze a version and let it rule")
async def publish_version(
    version_id: str,
    call: Annotated[Call, Depends(Writes(Scope.PRICES_WRITE))],
    body: Annotated[PublicationIn | None, Body()] = None,
) -> VersionDetail:
    version = await _version(call, version_id)
    published = await pricing.publish(
        call.connection,
        version.id,
        effective_from=(body or PublicationIn()).effective_from,
        now=call.now,
        on_offer=lambda: models.list_offered(call.connection),
    )
    call.trail.note("price_version.publish", version.id, before=vars(version), after=vars(published))
    return await _detail(call, published)


async def _own_book(call: Call) -> PriceBook | None:
    """The one book that rules the caller's tenant."""
    assert call.within is not None
    tenant = await get_tenant(call.connection, call.within, within=call.within)
    if tenant.price_book_id is not None:
        return await pricing.find_book(call.connection, tenant.price_book_id)
    return await pricing.find_default_book(call.connection, tenant.currency)


async def _book(call: Call, book_id: str) -> PriceBook:
    book = await pricing.find_book(call.connection, PriceBookId(book_id))
    if book is None or (call.within is not None and book != await _own_book(call)):
        not_found("price book", book_id)
    return book


async def _version(call: Call, version_id: str) -> PriceVersion:
    version = await pricing.find_version(call.connection, PriceVersionId(version_id))
    if version is None or (version.status == "draft" and not call.actor.is_staff):
        not_found("price version", version_id)
    await _book(call, version.price_book_id)
    return version


async def _detail(call: Call, version: PriceVersion) -> VersionDetail:
    book = await _book(call, version.price_book_id)
    prices = await pricing.list_prices(call.connection, version.id)
    names = await models.names_of(call.connection, {each.model_id for each in prices})
    shown = [_shown(each, names=names, currency=book.currency) for each in _in_meter_order(prices)]
    return VersionDetail.of(version, currency=book.currency, prices=shown)


def _in_meter_order(prices: Sequence[Price]) -> list[Price]:
    order = list(Meter)
    return sorted(prices, key=lambda each: (each.model_id, order.index(each.meter)))


def _shown(price: Price, *, names: dict[str, str], currency: str) -> PriceOut:
    return PriceOut(
        model=names[price.model_id],
        model_id=price.model_id,
        meter=price.meter,
        price=format_price(price.micros_per_mtok),
        currency=currency,
    )
