"""Price books: what a million tokens of each class costs, from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.core.ids import ModelId, PriceBookId, PriceVersionId
from billing.metering.model import Meter


@dataclass(frozen=True)
class PriceBook:
    """Dated prices in one currency. The default book of a currency serves tenants without their own."""

    id: PriceBookId
    name: str
    currency: str
    is_default: bool
    created_at: datetime


@dataclass(frozen=True)
class PriceVersion:
    """The prices of a book in [effective_from, effective_to); a draft has neither yet."""

    id: PriceVersionId
    price_book_id: PriceBookId
    status: str
    effective_from: datetime | None
    effective_to: datetime | None
    note: str
    created_at: datetime
    published_at: datetime | None


@dataclass(frozen=True)
class Price:
    """What a million tokens of one class of one model costs, in micros of the book's currency."""

    model_id: ModelId
    meter: Meter
    micros_per_mtok: int


@dataclass(frozen=True)
class Gap:
    """A class of a model without a price, where one is needed."""

    model_id: ModelId
    meter: Meter
    price_version_id: PriceVersionId | None
    price_book_id: PriceBookId
