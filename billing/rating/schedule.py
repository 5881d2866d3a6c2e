"""Which price applies when: the published versions of price books, half-open in time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from app.core.ids import ModelId, PriceBookId, PriceVersionId
from billing.metering.model import Meter
from billing.rating.model import Rates


class Version(msgspec.Struct, frozen=True):
    """One published version of a book, in force in `[from_ms, to_ms)`; to_ms None: until further notice."""

    version_id: PriceVersionId
    price_book_id: PriceBookId
    from_ms: int
    to_ms: int | None
    rates: Mapping[ModelId, Rates]

    def holds_at(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms and (self.to_ms is None or at_ms < self.to_ms)


class Pinned(NamedTuple):
    """The price of one request, whatever changes while it runs."""

    version_id: PriceVersionId
    rates: Rates


class Schedule:
    """All published versions by book."""

    def __init__(self, versions: Iterable[Version]) -> None:
        self._by_book: dict[PriceBookId, list[Version]] = {}
        for version in versions:
            self._by_book.setdefault(version.price_book_id, []).append(version)
        for of_book in self._by_book.values():
            of_book.sort(key=lambda version: version.from_ms, reverse=True)

    def pin(self, price_book_id: PriceBookId, model_id: ModelId, *, at_ms: int) -> Pinned | None:
        """The version and rates in force, or None: then the model can't be served, it is never free."""
        for version in self._by_book.get(price_book_id, ()):
            if version.holds_at(at_ms):
                rates = version.rates.get(model_id)
                return Pinned(version.version_id, rates) if rates is not None else None
        return None


def full_rates(prices: Iterable[tuple[ModelId, Meter, int]]) -> dict[ModelId, Rates]:
    """The rates of every model that has a price for each class; a model that lacks one has none at all."""
    by_model: dict[ModelId, dict[Meter, int]] = {}
    for model_id, meter, micros_per_mtok in prices:
        by_model.setdefault(model_id, {})[meter] = micros_per_mtok
    return {model: Rates.of(found) for model, found in by_model.items() if len(found) == len(Meter)}
