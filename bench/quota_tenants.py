"""The same crowd as a thousand tenants of Zipf popularity, each with a wallet and two limits of its own."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.quota_buyers import Buyer, Put, new_buyers, put_plan
from bench.quota_crowd import Crowd, wishes_of
from bench.quota_history import history_of, quantile, split
from bench.quota_rounds import CLIENTS, Limits, judge, known, mean_picos, settled, spent_s
from bench.quota_stack import Stack
from billing.quota.terms import PlanLimit, Subject

_SKEW = 1.1
_MOST = 120
_COVERED = 25
"""About how many requests a wallet covers: the most popular tenants want more, most others less."""
_PLAN = (
    PlanLimit(subject=Subject("tenant", "tokens", "minute"), amount=300_000, burst=30_000),
    PlanLimit(subject=Subject("tenant", "concurrent", "running"), amount=16),
)


async def play(stack: Stack, *, tenants: int, seconds: float) -> dict[str, Any]:
    """What so many tenants cost PostgreSQL, and whether all their limits held."""
    buyers = await new_buyers(stack.database, [_COVERED * mean_picos(_MOST)] * tenants)
    await put_plan(stack.engine, buyers, database=stack.database, of=_PLAN)
    await known(stack, buyers[-1])
    wishes = wishes_of(random.Random(2), secrets=popular(buyers), count=10**6, most=_MOST)
    crowd = Crowd([gateway.port for gateway in stack.gateways], CLIENTS, wishes)
    before, statements, cpu = await stack.counters(), await stack.statements(), await stack.authority_cpu()
    await crowd.run(seconds=seconds)
    cpu_s = spent_s(cpu, await stack.authority_cpu())
    later, after = await stack.statements(), await stack.counters()
    await settled(stack, buyers)
    history = await history_of(stack, buyers)
    admitted, wall_s = len(history.admitted), crowd.wall_s
    found = await _judged(stack, buyers)
    return {
        "tenants": tenants,
        "tenants_that_bought": found.pop("bought"),
        "seconds": round(wall_s, 1),
        "admitted": admitted,
        "answers": dict(crowd.codes.most_common()),
        "postgresql": {
            "statements_per_s": round((later["all"] - statements["all"]) / wall_s, 1),
            "quota_messages_per_s": round((later["syncs"] - statements["syncs"]) / wall_s, 1),
            "quota_messages_per_admitted": round((later["syncs"] - statements["syncs"]) / admitted, 4),
            "authority_cpu_ms_per_s": round(cpu_s * 1000 / wall_s, 1),
            "authority_cpu_us_per_admitted": round(cpu_s * 1e6 / admitted, 1),
        },
        "asks": int(after["steelyard_quota_asks_total"] - before["steelyard_quota_asks_total"]),
        "messages_failed": int(
            after["steelyard_quota_failures_total"] - before["steelyard_quota_failures_total"]
        ),
        "leases_of_all_gateways": int(after["steelyard_leases"]),
        **found,
        "admission_cpu_us_p50": quantile(history.admission_us(), 0.5),
        "recall_wait_ms_p99": quantile(history.waits_ms(), 0.99),
    }


def popular(buyers: list[Buyer]) -> Callable[[], str]:
    """Draws keys, the n-th buyer's as often as 1/n^1.1 says."""
    weights = list(itertools.accumulate(1 / rank**_SKEW for rank in range(1, len(buyers) + 1)))
    draw = random.Random(3)
    return lambda: draw.choices(buyers, cum_weights=weights)[0].secret


async def _judged(stack: Stack, buyers: list[Buyer]) -> dict[str, Any]:
    """The sums over all tenants of what a round proves of one."""
    history = await history_of(stack, buyers)
    parts = await asyncio.to_thread(split, history, buyers)
    limits = await _limits(stack, buyers)
    over: Counter[str] = Counter(wallet=0, rate=0, concurrency=0)
    refused: Counter[str] = Counter(wallet=0, rate=0, concurrency=0)
    silent: Counter[str] = Counter(wallet=0, rate=0, concurrency=0)
    lacking = bought = unmatched = 0
    for buyer in buyers:
        part = parts[buyer.tenant_id]
        if not part.claims:
            continue
        bought += 1
        found = judge(part, limits[buyer.tenant_id], held_by_dead={})
        over.update(found["overshoot"])
        refused.update(found["refused_while_available"])
        silent.update(found["refused_while_a_gateway_was_silent"])
        unmatched += found["notes_without_event"]
        lacking += bool(found["refusals"]["wallet"])
    return {
        "bought": bought,
        "wallets_that_refused": lacking,
        "overshoot": dict(over),
        "refused_while_available": dict(refused),
        "refused_while_a_gateway_was_silent": dict(silent),
        "notes_without_event": unmatched,
    }


async def _limits(stack: Stack, buyers: list[Buyer]) -> dict[str, Limits]:
    rows = await stack.books.fetch(
        "SELECT id, tenant_id, what, limit_amount::bigint AS amount, burst::bigint AS burst FROM allowance"
        " WHERE tenant_id = ANY($1) AND window_kind IN ('minute', 'running')",
        [buyer.tenant_id for buyer in buyers],
    )
    puts = {(row["tenant_id"], row["what"]): Put(row["id"], row["amount"], row["burst"]) for row in rows}
    return {
        buyer.tenant_id: Limits(buyer, puts[buyer.tenant_id, "tokens"], puts[buyer.tenant_id, "concurrent"])
        for buyer in buyers
    }
