from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.ids import ModelId, PriceBookId, PriceVersionId
from billing.metering.model import Meter, Usage
from billing.rating.model import Rates, bound, cost, rate
from billing.rating.schedule import Schedule, Version, full_rates

_BOOK, _MODEL = PriceBookId("pbk_1"), ModelId("mdl_1")
_tokens = st.integers(0, 10**9)
_prices = st.integers(0, 10**12)
_rates = st.builds(Rates, _prices, _prices, _prices, _prices)
_usages = st.builds(Usage, _tokens, _tokens, _tokens, _tokens)


def _version(name: str, from_ms: int, to_ms: int | None, price: int) -> Version:
    rates = {_MODEL: Rates(price, price, price, price)}
    return Version(PriceVersionId(name), _BOOK, from_ms, to_ms, rates)


_SCHEDULE = Schedule([_version("old", 0, 100, 1), _version("new", 100, None, 2)])


def test_versions_are_half_open_so_every_moment_has_exactly_one_price() -> None:
    pins = [_SCHEDULE.pin(_BOOK, _MODEL, at_ms=at_ms) for at_ms in (0, 99, 100, 10**15)]
    assert [pin.version_id for pin in pins if pin] == ["old", "old", "new", "new"]


def test_before_the_first_version_there_is_no_price() -> None:
    assert Schedule([_version("v", 50, None, 1)]).pin(_BOOK, _MODEL, at_ms=49) is None


def test_a_model_without_a_price_is_never_free() -> None:
    assert _SCHEDULE.pin(_BOOK, ModelId("mdl_2"), at_ms=1) is None
    assert _SCHEDULE.pin(PriceBookId("pbk_2"), _MODEL, at_ms=1) is None


def test_a_model_that_lacks_the_price_of_one_class_has_none() -> None:
    prices = [(_MODEL, meter, 5) for meter in Meter]
    assert full_rates(prices) == {_MODEL: Rates(5, 5, 5, 5)}
    assert full_rates(prices[:-1]) == {}


@given(_usages, _rates)
def test_the_lines_of_a_charge_add_up_to_its_cost(usage: Usage, rates: Rates) -> None:
    lines = rate(usage, rates)
    assert sum(line.amount_picos for line in lines) == cost(usage, rates)
    assert all(line.tokens > 0 for line in lines)


@given(_usages, _rates)
def test_no_split_of_the_input_costs_more_than_its_bound(usage: Usage, rates: Rates) -> None:
    inputs = usage.input + usage.input_cached + usage.input_cache_write
    assert cost(usage, rates) <= bound(input_tokens=inputs, output_tokens=usage.output, rates=rates)
