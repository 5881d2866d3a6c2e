"""Limits of one request and of one token, and a task's budget, at several gateways: exact to the unit."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from app.core.money import format_picos, parse_picos
from bench.quota_buyers import Buyer, new_buyers, put_limit
from bench.quota_crowd import Answer, Caller, Wish
from bench.quota_history import history_of
from bench.quota_rounds import known, settled
from bench.quota_stack import Stack

_PLENTY = 10**15
_AT_ONCE = 20
_LONG_MS = 3000
"""How long an admitted request runs, so that none gives back before all have asked."""
_AFTER_S = 0.5
_TOKENS = 24


async def one_request_a_minute(stack: Stack, *, whole_minute: bool) -> dict[str, Any]:
    """Twenty at once at all gateways: one is served; again just before and just after a minute."""
    buyer = await _buyer(stack)
    await put_limit(stack.engine, buyer, what="requests", window="minute", amount=1)
    await known(stack, buyer)
    found: dict[str, Any] = {}
    first, told = await _served(stack, buyer)
    found["at_first"] = {"expected": 1, "served": first}
    found["retry_after_s_least"] = min(told)
    loop = asyncio.get_running_loop()
    if whole_minute:
        refilled_at = loop.time() + min(told)
        await asyncio.sleep(refilled_at - loop.time() - 2)
        early, _ = await _served(stack, buyer)
        found["two_seconds_early"] = {"expected": 0, "served": early}
        await asyncio.sleep(refilled_at - loop.time() + _AFTER_S)
        again, _ = await _served(stack, buyer)
        found["when_told"] = {"expected": 1, "served": again}
    found["wrong"] = sum(
        each["expected"] != each["served"] for each in found.values() if isinstance(each, dict)
    )
    return found


async def one_token_over(stack: Stack) -> dict[str, Any]:
    """Buckets of one token less than a request, exactly one, one less than two, two: all at once."""
    need = await _need(stack)
    buckets = {need - 1: 0, need: 1, 2 * need - 1: 1, 2 * need: 2, 5 * need - 1: 4}
    buyers = await new_buyers(stack.database, [_PLENTY] * len(buckets))
    for buyer, bucket in zip(buyers, buckets, strict=True):
        await put_limit(stack.engine, buyer, what="tokens", window="minute", amount=1, burst=bucket)
    await known(stack, buyers[-1])
    runs = [_at_once(stack, buyer, ttft_ms=_LONG_MS, count=8) for buyer in buyers]
    rows = [
        {
            "bucket": bucket,
            "need": need,
            "expected": expected,
            "served": sum(answer.status == 200 for answer in answers),
        }
        for (bucket, expected), answers in zip(buckets.items(), await asyncio.gather(*runs), strict=True)
    ]
    return {"rows": rows, "wrong": sum(row["expected"] != row["served"] for row in rows)}


async def task_budget(stack: Stack, *, calls: int) -> dict[str, Any]:
    """An agent's loop over all gateways, with a budget for exactly so many calls, and with one pico less.

    Then twenty agents of one task at once, each until it is refused for good.
    """
    buyers = await new_buyers(stack.database, [_PLENTY] * 4)
    await known(stack, buyers[-1])
    need, cost = await _task_need(stack, buyers[0])
    exact = (calls - 1) * cost + need
    ran = await asyncio.gather(
        _loop(stack, buyers[1], budget=exact, most=2 * calls),
        _loop(stack, buyers[2], budget=exact - 1, most=2 * calls),
        *(_loop(stack, buyers[3], budget=exact, most=1000, first=n) for n in range(_AT_ONCE)),
    )
    await settled(stack, buyers)
    loops = [
        await _loop_row(stack, buyers[1], ran=ran[0], budget=exact, expected=calls),
        await _loop_row(stack, buyers[2], ran=ran[1], budget=exact - 1, expected=calls - 1),
    ]
    spent = (await history_of(stack, [buyers[3]])).committed
    crowd = {
        "budget": exact,
        "served": sum(served for served, _ in ran[2:]),
        "committed": spent,
        "left": exact - spent,
        "overshoot": max(0, spent - exact),
    }
    wrong = sum(row["expected"] != row["served"] or row["overshoot"] > 0 for row in loops)
    wrong += crowd["left"] < 0 or crowd["left"] >= need
    return {"need": need, "cost": cost, "loops": loops, "twenty_agents": crowd, "wrong": wrong}


async def _loop_row(
    stack: Stack, buyer: Buyer, *, ran: tuple[int, Answer], budget: int, expected: int
) -> dict[str, Any]:
    served, refusal = ran
    spent = (await history_of(stack, [buyer])).committed
    return {
        "budget": budget,
        "expected": expected,
        "served": served,
        "committed": spent,
        "overshoot": max(0, spent - budget),
        "stopped_by": refusal.code,
        "needed": refusal.error.get("needed"),
        "available": refusal.error.get("available"),
    }


async def _loop(
    stack: Stack, buyer: Buyer, *, budget: int, most: int, first: int = 0, name: str = "loop"
) -> tuple[int, Answer]:
    """Calls one after the other, each at the next gateway, until one is refused for good."""
    headers = (("x-steelyard-task", name), ("x-steelyard-task-budget", format_picos(budget)))
    callers = [Caller(_ports(stack), first=number) for number in range(len(stack.gateways))]
    served, answer = 0, Answer(0, {})
    try:
        while served < most:
            caller = callers[(first + served) % len(callers)]
            answer = await caller.ask(Wish(buyer.secret, _TOKENS, _TOKENS, streamed=False, headers=headers))
            if answer.status == 200:
                served += 1
            elif answer.error.get("retry_after_s") is None:
                break
            else:
                await asyncio.sleep(0.1)
    finally:
        for caller in callers:
            caller.close()
    return served, answer


async def _task_need(stack: Stack, buyer: Buyer) -> tuple[int, int]:
    """What a call holds, as the refusal of one in an empty task says, and what its event says it costs."""
    _, refusal = await _loop(stack, buyer, budget=1, most=1)
    assert refusal.code == "budget_exhausted", refusal
    await _loop(stack, buyer, budget=_PLENTY, most=1, name="other")
    await settled(stack, [buyer])
    return parse_picos(refusal.error["needed"]), (await history_of(stack, [buyer])).committed


async def _need(stack: Stack) -> int:
    """The tokens that a request holds, as the refusal of one says."""
    buyer = await _buyer(stack)
    await put_limit(stack.engine, buyer, what="tokens", window="minute", amount=1)
    await known(stack, buyer)
    [refused] = await _at_once(stack, buyer, ttft_ms=1, count=1)
    assert refused.code == "tokens_per_minute", refused
    return int(refused.error["needed"])


async def _served(stack: Stack, buyer: Buyer) -> tuple[int, list[float]]:
    """How many of twenty at once were served, and when the others are told to come back."""
    answers = await _at_once(stack, buyer, ttft_ms=1, count=_AT_ONCE)
    codes = Counter(answer.code for answer in answers if answer.status != 200)
    assert set(codes) <= {"requests_per_minute"}, codes
    told = [float(answer.error["retry_after_s"]) for answer in answers if answer.status != 200]
    return sum(answer.status == 200 for answer in answers), told


async def _at_once(stack: Stack, buyer: Buyer, *, ttft_ms: int, count: int) -> list[Answer]:
    """The answers to so many at once, in turn at each gateway; an admitted one runs for that long."""
    callers = [Caller(_ports(stack), first=number) for number in range(count)]
    wish = Wish(buyer.secret, _TOKENS, _TOKENS, streamed=False, ttft_ms=ttft_ms)
    try:
        return await asyncio.gather(*(caller.ask(wish) for caller in callers))
    finally:
        for caller in callers:
            caller.close()


def _ports(stack: Stack) -> list[int]:
    return [gateway.port for gateway in stack.gateways]


async def _buyer(stack: Stack) -> Buyer:
    [buyer] = await new_buyers(stack.database, [_PLENTY])
    return buyer
