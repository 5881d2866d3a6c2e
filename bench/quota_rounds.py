"""Two hundred clients at four gateways, a wallet for a part of what they want, and two more limits."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

from bench.quota_buyers import Buyer, Put, new_buyers, put_limit
from bench.quota_crowd import Crowd, wishes_of
from bench.quota_history import History, history_of, quantile
from bench.quota_judge import (
    Span,
    all_answered,
    over_at_most,
    over_rate,
    refused_while_available,
    refused_while_filled,
)
from bench.quota_stack import Life, Stack, until
from billing.metering.model import Meter
from tests.app.gateway.house import PRICES

CLIENTS = 200
MOST = 300
"""Largest `max_tokens` drawn."""
TOKENS_PER_MINUTE, BURST = 600_000, 60_000
AT_ONCE = 48
GRACE_NS = 150 * 10**6
"""What got free less than one recall bound ago is under way: durable, told and lent on a little later."""
_WARM_S, _EARLY_S = 2.5, 0.5
_READY_S, _POSTED_S = 30.0, 60.0


def mean_picos(most: int) -> int:
    """About what a request costs that may write `most` tokens: a price is of a million, in micros."""
    return (3 * most // 8 + 8) * PRICES[Meter.OUTPUT]


@dataclass(frozen=True)
class Limits:
    """A buyer and its two limits beside the wallet."""

    buyer: Buyer
    tokens: Put
    at_once: Put


async def play(stack: Stack, *, number: int, covered: int, seconds: float, kill: bool) -> dict[str, Any]:
    """One round.   covered: about how many requests the wallet covers; three times as many are wished for."""
    limits = await _set_up(stack, balance=covered * mean_picos(MOST))
    buyer = limits.buyer
    ports = [gateway.port for gateway in stack.gateways]
    wishes = wishes_of(random.Random(number), secrets=lambda: buyer.secret, count=3 * covered, most=MOST)
    crowd = Crowd(ports, CLIENTS, wishes)
    killing = _Killing(stack, limits, after=covered // 3)
    crowd.on_served = killing.look if kill else None
    before = await stack.counters()
    await crowd.run(seconds=seconds)
    await killing.over()
    after = await stack.counters()
    await settled(stack, [buyer])
    history = await history_of(stack, [buyer])
    found = judge(history, limits, held_by_dead=killing.spans)
    written = sum(event.outcome != "lost" for event in history.events.values())
    asked = after["steelyard_quota_asks_total"] - before["steelyard_quota_asks_total"]
    return {
        "killed": kill,
        **found,
        "served_without_event": max(0, crowd.served - written),
        "requests": {
            "wished": 3 * covered,
            "admitted": len(history.admitted),
            "lost": sum(event.outcome == "lost" for event in history.events.values()),
            "answers": dict(crowd.codes.most_common()),
        },
        "wall_s": round(crowd.wall_s, 1),
        "asks": None if kill else int(asked),
        "admission_cpu_us_p50": quantile(history.admission_us(), 0.5),
        "recall_wait_ms_p50": quantile(history.waits_ms(), 0.5),
        "recall_wait_ms_p99": quantile(history.waits_ms(), 0.99),
    }


def judge(history: History, limits: Limits, *, held_by_dead: dict[str, list[Span]]) -> dict[str, Any]:
    """What a round proves of its three limits. Money in picos."""
    wallet, tokens, at_once = limits.buyer.wallet, limits.tokens, limits.at_once
    balance = limits.buyer.balance
    money = history.spans(wallet, what="picos")
    drawn = history.spans(tokens.allowance_id, what="tokens")
    running = history.spans(at_once.allowance_id, what="concurrent")
    burst = tokens.burst or tokens.amount
    wrong = {
        "wallet": refused_while_available(
            money + held_by_dead.get(wallet, []), history.lacks(wallet), limit=balance, grace_ns=GRACE_NS
        ),
        "concurrency": refused_while_available(
            running + held_by_dead.get(at_once.allowance_id, []),
            history.lacks(at_once.allowance_id),
            limit=at_once.amount,
            grace_ns=GRACE_NS,
        ),
        "rate": refused_while_filled(
            drawn + held_by_dead.get(tokens.allowance_id, []),
            history.lacks(tokens.allowance_id),
            per_minute=tokens.amount,
            burst=burst,
            grace_ns=2 * GRACE_NS,
        ),
    }
    ids_of = {"wallet": wallet, "concurrency": at_once.allowance_id, "rate": tokens.allowance_id}
    silent = {
        name: [lack for lack in found if not all_answered(lack, history.talks(ids_of[name]))]
        for name, found in wrong.items()
    }
    over = {
        "wallet": max(history.committed - balance, over_at_most(money, limit=balance)),
        "rate": over_rate(drawn, per_minute=tokens.amount, burst=burst),
        "concurrency": over_at_most(running, limit=at_once.amount),
    }
    refusals = {
        "cut_off": history.cut_off,
        "wallet": len(history.lacks(wallet)),
        "rate": len(history.lacks(tokens.allowance_id)),
        "concurrency": len(history.lacks(at_once.allowance_id)),
    }
    return {
        "limit": balance,
        "committed": history.committed,
        "overshoot": over,
        "utilisation": round(history.committed / balance, 5),
        "refusals": refusals,
        "refused_while_available": {name: len(wrong[name]) - len(silent[name]) for name in wrong},
        "refused_while_a_gateway_was_silent": {name: len(found) for name, found in silent.items()},
        "most_at_once": over_at_most(running, limit=0),
        "notes_without_event": history.unmatched(),
    }


class _Killing:
    """`kill -9` of one gateway once so many wishes came true, and its start again at once.

    spans: what the dead process had, by allowance, until its incarnation was closed: nobody can have that.
    """

    def __init__(self, stack: Stack, limits: Limits, *, after: int) -> None:
        self._stack = stack
        self._limits = limits
        self._after = after
        self._task: asyncio.Task[None] | None = None
        self.spans: dict[str, list[Span]] = {}

    def look(self, served: int) -> None:
        """Told of each wish that came true."""
        if served >= self._after and self._task is None:
            self._task = asyncio.create_task(self._kill())

    async def over(self) -> None:
        """Wait until the victim serves again and its former life is closed."""
        if self._task is not None:
            await self._task

    async def _kill(self) -> None:
        victim = self._stack.gateways[0]
        dead = await self._stack.kill(victim)
        had = await self._leased(dead)
        starting = asyncio.create_task(self._stack.start(victim))
        closed_ns = await until(lambda: self._closed_ns(dead))
        assert dead.killed_ns is not None
        for allowance_id, amount in had.items():
            self.spans[allowance_id] = [Span(dead.killed_ns, closed_ns, amount, 0)]
        await starting

    async def _leased(self, life: Life) -> dict[str, int]:
        rows = await self._stack.books.fetch(
            "SELECT allowance_id, (granted - settled - returned)::text AS out FROM lease"
            " WHERE incarnation_id = $1",
            life.incarnation_id,
        )
        return {row["allowance_id"]: int(row["out"]) for row in rows}

    async def _closed_ns(self, life: Life) -> int | None:
        query = "SELECT closed_at FROM incarnation WHERE id = $1"
        at = await self._stack.books.fetchval(query, life.incarnation_id)
        return None if at is None else round(at.timestamp() * 1e6) * 1000


async def away(stack: Stack, *, seconds: float) -> dict[str, Any]:
    """The same crowd with limits far above what it wants: what a request costs the authority then.

    The first seconds, in which gateways learn what they need, do not count.
    """
    limits = await _set_up(stack, balance=10**18, tokens=10**9, at_once=10_000)
    wishes = wishes_of(random.Random(0), secrets=lambda: limits.buyer.secret, count=10**6, most=16)
    crowd = Crowd([gateway.port for gateway in stack.gateways], CLIENTS, wishes)
    running = asyncio.create_task(crowd.run(seconds=_WARM_S + seconds))
    await asyncio.sleep(_WARM_S)
    began_ns = time.time_ns()
    before, statements, cpu = await stack.counters(), await stack.statements(), await stack.authority_cpu()
    await asyncio.sleep(seconds - _EARLY_S)
    spent = spent_s(cpu, await stack.authority_cpu())
    later, after, ended_ns = await stack.statements(), await stack.counters(), time.time_ns()
    await running
    history = await history_of(stack, [limits.buyer])
    admitted = sum(began_ns <= claim.taken.at_ns < ended_ns for claim in history.admitted)
    took_s = (ended_ns - began_ns) / 1e9

    def grown(name: str) -> int:
        return int(after[name] - before[name])

    return {
        "seconds": round(took_s, 1),
        "admitted": admitted,
        "admitted_per_s": round(admitted / took_s, 1),
        "refused": len(history.refused),
        "asks": grown("steelyard_quota_asks_total"),
        "messages": grown("steelyard_quota_syncs_total"),
        "messages_failed": grown("steelyard_quota_failures_total"),
        "messages_per_s_and_gateway": round(
            grown("steelyard_quota_syncs_total") / took_s / len(stack.gateways), 2
        ),
        "statements_counted_by_postgresql": later["syncs"] - statements["syncs"],
        "round_trips_per_admitted": round((later["syncs"] - statements["syncs"]) / admitted, 4),
        "authority_cpu_us_per_admitted": round(spent * 1e6 / admitted, 1),
        "admission_cpu_us_p50": quantile(history.admission_us(), 0.5),
        "admission_cpu_us_p99": quantile(history.admission_us(), 0.99),
    }


def spent_s(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two looks; what began between them began at 0."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


async def settled(stack: Stack, buyers: list[Buyer]) -> None:
    """Wait until nothing runs, all is posted and nothing is lent of these wallets."""
    wallets = [buyer.wallet for buyer in buyers]

    async def look() -> bool:
        out: bool = await stack.books.fetchval(
            "SELECT coalesce(sum(granted - settled - returned), 0) = 0 FROM lease"
            " WHERE allowance_id = ANY($1)",
            wallets,
        )
        return out

    await until(look, within_s=_POSTED_S)


async def _set_up(
    stack: Stack, *, balance: int, tokens: int = TOKENS_PER_MINUTE, at_once: int = AT_ONCE
) -> Limits:
    """A new buyer whom all gateways know, and its limits."""
    [buyer] = await new_buyers(stack.database, [balance])
    burst = BURST if tokens == TOKENS_PER_MINUTE else tokens
    limits = Limits(
        buyer,
        await put_limit(stack.engine, buyer, what="tokens", window="minute", amount=tokens, burst=burst),
        await put_limit(stack.engine, buyer, what="concurrent", window="running", amount=at_once),
    )
    await known(stack, buyer)
    return limits


async def known(stack: Stack, buyer: Buyer) -> None:
    """Wait until all gateways know a buyer and what was set before."""

    async def look() -> bool:
        for gateway in stack.gateways:
            url = f"http://127.0.0.1:{gateway.port}/v1/models"
            answer = await stack.http.get(url, headers={"authorization": f"Bearer {buyer.secret}"})
            if answer.status_code != 200:
                return False
        return True

    await until(look, within_s=_READY_S)
    await asyncio.sleep(0.5)  # limits are told apart from keys
