"""`x-ratelimit-*`: where the tightest rate of requests and of tokens stands."""

from __future__ import annotations

import pytest

from app.catalog.limits import Limit
from app.core.ids import AllowanceId
from app.gateway.rate_headers import duration, rate_headers
from app.gateway.terms import Drawn, Terms, terms_of
from billing.quota.model import Rate

_WALLET = Drawn(AllowanceId("alw_w"), "tenant", "ten_1", "picos")


def rate(name: str, what: str, amount: int, burst: int | None = None) -> Limit:
    return Limit(
        AllowanceId(name),
        scope_kind="tenant",
        scope_id="ten_1",
        model_id=None,
        what=what,
        window="minute",
        amount=amount,
        burst=burst,
        start_ms=None,
        end_ms=None,
        source="plan:pln_1",
        rate=Rate(amount, amount if burst is None else burst),
    )


def shown(limits: list[Limit], standing: dict[str, tuple[int, int]]) -> dict[str, str]:
    terms: Terms = terms_of(limits, wallet=_WALLET)
    return {
        name.decode().removeprefix("x-ratelimit-"): value.decode()
        for name, value in rate_headers(terms, standing.get)
    }


def test_a_rate_nobody_has_drawn_on_is_full() -> None:
    assert shown([rate("alw_1", "tokens", 60_000, burst=10_000)], {}) == {
        "limit-tokens": "60000",
        "remaining-tokens": "10000",
        "reset-tokens": "0s",
    }


def test_a_rate_is_full_again_when_what_is_missing_has_flown_in() -> None:
    assert shown([rate("alw_1", "requests", 60)], {"alw_1": (60, 45)}) == {
        "limit-requests": "60",
        "remaining-requests": "45",
        "reset-requests": "15s",
    }


def test_of_several_rates_the_tightest_is_told() -> None:
    limits = [rate("alw_1", "tokens", 1000), rate("alw_2", "input_tokens", 500), rate("alw_3", "requests", 9)]
    told = shown(limits, {"alw_1": (1000, 400), "alw_2": (500, 450), "alw_3": (9, 10)})
    assert (told["limit-tokens"], told["remaining-tokens"]) == ("1000", "400")
    assert told["remaining-requests"] == "9", "never more than it holds"


def test_a_limit_below_what_is_out_leaves_nothing_and_no_rate_never_fills() -> None:
    told = shown([rate("alw_1", "requests", 0)], {"alw_1": (0, -3)})
    assert told == {"limit-requests": "0", "remaining-requests": "0", "reset-requests": "0s"}


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, b"0ms"),
        (20, b"20ms"),
        (1000, b"1s"),
        (1500, b"1.5s"),
        (59_999, b"59.999s"),
        (360_000, b"6m0s"),
        (3_600_000, b"1h0m0s"),
        (86_461_500, b"24h1m1.5s"),
    ],
)
def test_times_are_written_as_openai_does(milliseconds: int, text: bytes) -> None:
    assert duration(milliseconds) == text
