"""Token classes on their way through the gateway: disjoint, never negative, none counted twice or dropped."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.money import format_picos, parse_price
from billing.rating.model import Rates, cost
from tests.app.gateway.house import chat, execute
from tests.field.replay import counts, whole
from tests.field.stand import Stand

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in msgspec.json.decode((Path(__file__).parents[1] / "data" / "metering_cases.json").read_bytes())
}
_OF_THE_WIRE = [
    name
    for name, case in _CASES.items()
    if "completion_tokens" in case["usage"] and "chunks" not in case["usage"]
]
"""Cases in the form in which an engine answers."""
_LIMITS = "UPDATE model SET context_limit = 2000000, max_output_tokens = 200000"


def _rates(per_million: dict[str, Any]) -> Rates:
    price = {name: parse_price(str(value)) for name, value in per_million.items()}
    fresh = price["input"]
    return Rates(fresh, price.get("cached", fresh), price.get("cache_write", fresh), price["output"])


def _stated(usage: dict[str, int]) -> dict[str, Any]:
    """A case's usage as vLLM writes it."""
    stated = counts(usage["prompt_tokens"], usage["completion_tokens"])
    if "cached_tokens" in usage:
        stated["prompt_tokens_details"] = {"cached_tokens": usage["cached_tokens"]}
    if "reasoning_tokens" in usage:
        stated["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning_tokens"]}
    return stated


async def _widened(stand: Stand) -> None:
    """Let the model take prompts and answers of any size of these cases; waits until the gateway knows."""
    await execute(stand.house.database, _LIMITS)
    stand.replay.scripts["wide"] = whole("", counts(1, 0))
    while True:
        answer = await stand.house.client.post(
            "/v1/chat/completions", json=chat("script:wide", max_tokens=150_000)
        )
        if stand.house.admitted_of(answer.headers["x-request-id"]).output_bound == 150_000:
            return


@pytest.mark.parametrize("name", _OF_THE_WIRE)
async def test_a_reported_case_costs_exactly_what_it_should_through_the_gateway(
    vllm: Stand, name: str
) -> None:
    case = _CASES[name]
    await _widened(vllm)
    usage = case["usage"]
    script = whole("x", _stated(usage))
    padding = "x" * usage["prompt_tokens"]
    _, settled = await vllm.whole(name.replace("-", "_"), script, text=padding, max_tokens=200_000)
    amount = cost(settled.billed, _rates(case["rates_usd_per_1m"]))
    assert Decimal(format_picos(amount)) == Decimal(case["expected_usd"])
    assert settled.usage.reasoning == usage.get("reasoning_tokens", 0)


@pytest.mark.parametrize(("prompt", "cached"), [(56_322, 72_960), (51_232, 1_188_096)])
async def test_more_cached_than_prompt_is_never_a_negative_charge(
    vllm: Stand, prompt: int, cached: int
) -> None:
    await _widened(vllm)
    usage = counts(prompt, 0, prompt_tokens_details={"cached_tokens": cached})
    _, settled = await vllm.whole(f"above_{cached}", whole("x", usage), text="x" * prompt)
    assert min(settled.usage.input, settled.usage.input_cached, settled.cost_picos) >= 0
    assert settled.usage.total == prompt
    assert "cached_above_input" in settled.flags


async def test_tokens_written_to_the_cache_are_taken_out_of_the_input(vllm: Stand) -> None:
    details = {"cached_tokens": 0, "created_cache_tokens": 12_304}
    await _widened(vllm)
    usage = counts(12_307, 550, prompt_tokens_details=details)
    _, settled = await vllm.whole("written", whole("x", usage), text="x" * 12_307, max_tokens=550)
    assert (settled.usage.input, settled.usage.input_cache_write) == (3, 12_304)
    rates = _rates({"input": 3, "cache_write": 3.75, "output": 15})
    assert Decimal(format_picos(cost(settled.billed, rates))) == Decimal("0.054399")


@pytest.mark.parametrize(("completion", "reasoning"), [(28, 18), (136, 31), (482, 448), (1050, 50), (5, 0)])
async def test_reasoning_is_a_part_of_the_output_neither_added_nor_alone(
    vllm: Stand, completion: int, reasoning: int
) -> None:
    await _widened(vllm)
    details = {"reasoning_tokens": reasoning}
    usage = counts(9, completion, completion_tokens_details=details)
    _, settled = await vllm.whole(f"thinking_{completion}", whole("x", usage), max_tokens=2_000)
    assert settled.billed.output == settled.usage.output == completion
    assert settled.usage.total == 9 + completion
