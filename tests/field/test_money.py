"""Money that was a float elsewhere: in this API every amount is a decimal string, of any size, exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from app.control.application import create_app
from app.core.database import connect_engine
from app.core.money import format_picos, parse_picos, parse_price
from billing.metering.model import Usage
from billing.rating.model import Rates, cost

_MONEY = ("amount", "balance", "cost", "credit_limit", "held", "posted", "price", "value")


def _properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every named property in a description, at any depth."""
    if isinstance(schema, dict):
        for name, value in (schema.get("properties") or {}).items():
            yield name, value
        for value in schema.values():
            yield from _properties(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _properties(value)


def _types(schema: dict[str, Any]) -> set[str]:
    return (
        {schema["type"]} if "type" in schema else {each.get("type", "") for each in schema.get("anyOf", [])}
    )


def test_no_amount_in_the_api_is_a_number() -> None:
    app = create_app(connect_engine("postgresql://nobody@127.0.0.1:1/nothing")).app
    assert isinstance(app, FastAPI)
    named = [(name, _types(schema)) for name, schema in _properties(app.openapi()) if name in _MONEY]
    assert named
    assert not [(name, types) for name, types in named if "number" in types]


@pytest.mark.parametrize(
    ("tokens", "price", "amount"),
    [(323, "5", "0.001615"), (121_000, "3", "0.363"), (1, "0.000001", "0.000000000001")],
)
def test_tokens_at_a_price_are_exact_to_the_last_digit(tokens: int, price: str, amount: str) -> None:
    rate = parse_price(price)
    assert format_picos(cost(Usage(input=tokens), Rates(rate, rate, rate, rate))) == amount


@pytest.mark.parametrize("amount", ["4294.97", "42949672.96", "9223372036854.775808", "100000000000000"])
def test_a_balance_is_not_clamped_to_a_machine_word(amount: str) -> None:
    assert format_picos(parse_picos(amount)) == amount
