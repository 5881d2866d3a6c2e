"""Rounds of `kill -9` under load: who is killed when comes from a seed; what became of it is counted.

All rounds run on one stack, one after the other, and the books are read on from round to round: each
round's figures are what it added, and what is wrong at its end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from app.stack.board import Row
from tests.faults.audit import examine
from tests.faults.books import Books
from tests.faults.buyer import Buyer, new_buyer
from tests.faults.client import Kind, Load, Received
from tests.faults.finding import Finding, tally
from tests.faults.stack import GATEWAYS, Stack, until
from tests.faults.witness import Witness

ROUNDS = {
    "gateway": 12,
    "settler": 6,
    "postgres": 6,
    "engine": 6,
    "all": 6,
    "worker": 3,
    "control": 3,
    "valkey": 3,
    "supervisor": 3,
}
"""How often whom. `all`: every process but the supervisor, which has to bring them back."""
NEEDED = (*GATEWAYS, "settler", "control", "postgres")
"""What requests, books and their audit need."""
MOST_S = 1.5
"""Latest moment of a kill, after the load has begun to flow."""
FLOWING = 10
"""Completed requests after which the load counts as flowing."""
COVERED = 2
"""Requests for which the small wallet has money at the beginning of a round; more callers ask for it."""
SHORT = 8
_PAUSE_S = 0.1
"""Of a caller after a failure: refusals are seen, but are not most of the load."""


@dataclass(frozen=True)
class Round:
    """moment_s: from the time at which the load flows to the kill."""

    number: int
    kind: str
    victim: str
    moment_s: float


@dataclass
class Played:
    """A round's figures.   wrong: subjects that are wrong at its end.   new: those of them that it added."""

    round: Round
    took_s: float
    requests: int
    delivered_to_the_end: int
    left_by_the_client: int
    refused: int
    cut: int
    settled: int
    lost: int
    wrong: dict[str, int]
    new: dict[str, int]


def plan(seed: int, *, rounds: dict[str, int]) -> list[Round]:
    """The same rounds for the same seed."""
    draw = random.Random(seed)
    kinds = [kind for kind, times in rounds.items() for _ in range(times)]
    draw.shuffle(kinds)
    return [
        Round(
            number,
            kind,
            draw.choice(GATEWAYS) if kind == "gateway" else kind,
            round(draw.uniform(0, MOST_S), 3),
        )
        for number, kind in enumerate(kinds, start=1)
    ]


@dataclass
class Range:
    """A stack under fire, its clients, and all that was ever seen of it."""

    stack: Stack
    small: Buyer
    small_needs: int
    witness: Witness
    books: Books
    received: list[Received] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)

    async def play(self, one: Round) -> Played:
        """One round: load, kill, recovery, audit."""
        started = monotonic()
        await self._fill_small_wallet(one)
        loads = self._loads()
        async with _running(loads):
            await loads[0].completes(FLOWING)
            await asyncio.sleep(one.moment_s)
            await _kill(self.stack, one.victim)
            await loads[0].completes(FLOWING)
        received = [seen for load in loads for seen in load.received]
        self.received += received
        posted_before = len(self.books.events)
        self.witness.look_at_journals()
        looked = await examine(self.stack, self.books, received=self.received, within_s=30)
        known = {(finding.wrong, finding.subject) for finding in self.findings}
        self.findings, self.compared = looked.findings + self.witness.findings, looked.compared
        new = [finding for finding in self.findings if (finding.wrong, finding.subject) not in known]
        outcomes = [event["outcome"] for event in list(self.books.events.values())[posted_before:]]
        return Played(
            one,
            took_s=round(monotonic() - started, 2),
            **_seen(received),
            settled=sum(outcome != "lost" for outcome in outcomes),
            lost=outcomes.count("lost"),
            wrong=tally(self.findings),
            new=tally(new),
        )

    async def _fill_small_wallet(self, one: Round) -> None:
        lacking = COVERED * self.small_needs - await self.small.posted()
        if lacking > 0:
            await self.small.gets(lacking, reference=f"round {one.number}")

    def _loads(self) -> Sequence[Load]:
        url = self.stack.addresses.gateway_url
        mixed = Load(
            url,
            key=self.stack.key,
            callers=8,
            sizes=(2, 8, 30, 90),
            kinds=tuple(Kind),
            choices=(1, 1, 2),
            pause_s=_PAUSE_S,
        )
        kinds = (Kind.WHOLE, Kind.STREAM, Kind.HUNG_UP)
        poor = Load(
            url, key=self.small.key, callers=2 * COVERED, sizes=(SHORT,), kinds=kinds, pause_s=_PAUSE_S
        )
        return mixed, poor


@asynccontextmanager
async def under_fire(stack: Stack) -> AsyncIterator[Range]:
    """A range on a fresh stack: with a second tenant, whose wallet is always near its end."""
    small = await new_buyer(stack)
    needs = await small.needs(SHORT, Kind.WHOLE)
    async with Witness(stack).watching() as witness:
        yield Range(stack, small, needs, witness, Books(stack.journals))


def _seen(received: Sequence[Received]) -> dict[str, int]:
    """What the clients saw, each request in one way."""
    return {
        "requests": len(received),
        "delivered_to_the_end": sum(one.complete for one in received),
        "left_by_the_client": sum(one.left and not one.complete for one in received),
        "refused": sum(one.error is not None for one in received),
        "cut": sum(one.cut is not None and one.error is None and not one.complete for one in received),
    }


@asynccontextmanager
async def _running(loads: Sequence[Load]) -> AsyncIterator[None]:
    async with AsyncExitStack() as all_of_them:
        for load in loads:
            await all_of_them.enter_async_context(load.running())
        yield


async def _kill(stack: Stack, victim: str) -> None:
    """Kill it, and wait until all that requests and books need is back."""
    if victim == "supervisor":
        stack.kill_supervisor()
        await stack.orphaned()
        await asyncio.to_thread(stack.up)
        return
    names = [row.name for row in _services(stack)] if victim == "all" else [victim]
    were = {name: await _kill_service(stack, name) for name in names if name != "engine"}
    if victim in ("all", "engine"):
        await stack.engine.gather()
        stack.engine.kill()
        stack.engine.start()
    for name in NEEDED:
        if name in were:
            await stack.back(name, was=were[name])
    for name in GATEWAYS:
        await _serves(stack, name)


async def _kill_service(stack: Stack, name: str) -> int:
    async def look() -> bool:
        return stack.row(name).pid != 0

    await until(look)
    return stack.kill(name)


def _services(stack: Stack) -> Iterator[Row]:
    """What runs; a step of the start has no process."""
    return (row for row in stack.state().rows if row.pid)


async def _serves(stack: Stack, name: str) -> None:
    """Wait until the gateway has served a request in its present life."""

    async def look() -> bool:
        samples = await stack.metrics(name)
        return any(sample.startswith("steelyard_requests_total{") for sample in samples)

    await until(look)
