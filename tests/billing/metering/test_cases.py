"""Figures from public reports of wrong bills: each must come out exact here."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.money import format_picos, parse_price
from billing.metering.convert import Convention, Report, convert
from billing.metering.gauge import Gauge
from billing.metering.model import Usage
from billing.metering.weigh import weigh_counted
from billing.rating.model import Rates, cost

_CASES: list[dict[str, Any]] = msgspec.json.decode(
    (Path(__file__).parents[2] / "data" / "metering_cases.json").read_bytes()
)


def _rates(per_million: dict[str, Any]) -> Rates:
    price = {name: parse_price(str(value)) for name, value in per_million.items()}
    fresh = price["input"]
    return Rates(fresh, price.get("cached", fresh), price.get("cache_write", fresh), price["output"])


def _usage(stated: dict[str, Any]) -> Usage:
    if "estimated_completion_tokens" in stated:
        bound = Usage(input=0, output=stated["model_max_output"])
        counted = stated["estimated_completion_tokens"]
        return weigh_counted(input_tokens=0, output_tokens=counted, bound=bound).usage
    if "chunks" in stated:
        return _last_of(stated["chunks"], stated.get("completion_tokens"))
    report = Report(
        prompt=stated.get("prompt_tokens", stated.get("input_tokens", 0)),
        completion=stated.get("completion_tokens", stated.get("output_tokens", 0)),
        cached=stated.get("cached_tokens", stated.get("cache_read", 0)),
        cache_write=stated.get("cache_creation"),
        reasoning=stated.get("reasoning_tokens"),
    )
    converted = convert(report, convention=Convention(stated.get("convention", "includes_cache")))
    assert converted is not None
    return converted.usage


def _last_of(chunks: Any, total: int | None) -> Usage:
    gauge = Gauge(per_choice=False)
    if isinstance(chunks, str):
        assert total is not None
        chunks = [{"input": 0, "output": count} for count in range(1, total + 1)]
    for chunk in chunks:
        gauge.observe(Report(prompt=chunk.get("input"), completion=chunk.get("output")))
    report = gauge.report()
    assert report is not None
    converted = convert(report, convention=Convention.INCLUDES_CACHE)
    assert converted is not None
    return converted.usage


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_a_reported_case_costs_exactly_what_it_should(case: dict[str, Any]) -> None:
    amount = cost(_usage(case["usage"]), _rates(case["rates_usd_per_1m"]))
    assert Decimal(format_picos(amount)) == Decimal(case["expected_usd"])
