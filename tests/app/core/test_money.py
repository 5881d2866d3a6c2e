from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import money

AMOUNTS = st.integers(-(10**36) + 1, 10**36 - 1)


@given(AMOUNTS)
def test_an_amount_survives_its_decimal_string_to_the_pico(picos: int) -> None:
    text = money.format_picos(picos)
    assert money.parse_picos(text) == picos
    assert "e" not in text.lower()
    assert Fraction(text) * 10**12 == picos


@given(st.integers(0, money.MAX_PRICE_MICROS_PER_MTOK))
def test_a_price_survives_its_decimal_string(micros: int) -> None:
    assert money.parse_price(money.format_price(micros)) == micros


@given(st.integers(0, money.MAX_PRICE_MICROS_PER_MTOK), st.integers(0, 10**9))
def test_a_million_tokens_cost_their_price(micros: int, tokens: int) -> None:
    per_million = Fraction(money.format_price(micros))
    assert Fraction(money.format_picos(tokens * micros)) == per_million * tokens / 10**6


@pytest.mark.parametrize(
    "text", ["", "1.", ".5", "1e3", "+1", "1,5", "NaN", " 1", "0.0000000000001", "٣", "1" * 25]
)
def test_what_is_no_exact_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="decimal amount"):
        money.parse_picos(text)


@pytest.mark.parametrize("text", ["-0.5", "1000000.000001", "0.0000001"])
def test_a_price_out_of_range_or_too_fine_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"price lies|decimal amount"):
        money.parse_price(text)


@pytest.mark.parametrize(("code", "right"), [("USD", True), ("usd", False), ("US", False), ("ÜSD", False)])
def test_a_currency_is_three_capital_letters(code: str, right: bool) -> None:
    assert money.is_currency(code) is right
