"""A living house is reconciled to the token: gateway, settler and engine as they are, its counters read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.catalog.engines import list_engines
from app.core.clock import SystemClock, from_ms
from app.core.database import connect_engine
from app.workers.engine_counters import scrape
from billing.journal.settler import Settler
from billing.reconcile.days import day_of
from billing.reconcile.model import DayState, EngineDay, EngineMeter, Pair
from billing.reconcile.repository import keep_readings
from billing.reconcile.service import Reconciled, Terms, reconcile
from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import Options
from tests.app.gateway.house import SERVED, House, chat, open_house
from tests.database import Database

EXACT = Terms(lag=timedelta(0), slack=timedelta(0))
"""One machine with one clock, and nothing runs while the engine is read."""
_CHAT = "/v1/chat/completions"


@dataclass
class Books:
    """A house with its settler, and the look at its engines."""

    house: House
    engine: AsyncEngine
    settler: Settler
    clock: SystemClock

    async def ask(self, **members: Any) -> None:
        """A request that comes to its end."""
        answer = await self.house.client.post(_CHAT, json=chat(**members))
        assert answer.status_code == 200, answer.text

    async def leave(self, **members: Any) -> None:
        """A stream that the client leaves after its first bytes, and the engine's learning of it."""
        body = chat("[simulator chunk_ms=5]", stream=True, max_tokens=400, **members)
        async with self.house.client.stream("POST", _CHAT, json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        await self._until(lambda: self.house.engine.stats.running == 0)

    async def read(self) -> None:
        """What the engine says now, once all that was asked of it is settled."""
        await self._until(lambda: len(self.house.settled()) == len(self.house.admitted()))
        async with self.engine.begin() as connection:
            scraped = await scrape(await list_engines(connection, removed=False), clock=self.clock)
            assert not scraped.silent
            await keep_readings(connection, scraped.readings)

    async def reconciled(self) -> Reconciled:
        """Everything posted, then compared."""
        await self.settler.look()
        async with self.engine.begin() as connection:
            fleet = await list_engines(connection, removed=True)
            day = day_of(from_ms(self.clock.now_ms()))
            return await reconcile(connection, day, fleet=fleet, terms=EXACT, clock=self.clock)

    async def crash(self) -> None:
        """Kill the engine under a stream, and start another process at its address."""
        body = chat("[simulator chunk_ms=5]", stream=True, max_tokens=400)
        async with self.house.client.stream("POST", _CHAT, json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
            await self.house.engine.stop()
        port = self.house.engine.port
        self.house.engine = SimulatedEngine(Options(model=SERVED))
        await self.house.engine.start("127.0.0.1", port)
        while (await self.house.client.post(_CHAT, json=chat())).status_code != 200:
            await asyncio.sleep(0.05)

    async def _until(self, is_so: Any) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_books(database: Database, folder: Path) -> AsyncIterator[Books]:
    async with open_house(database, folder) as house:
        engine, clock = connect_engine(database.app_url), SystemClock()
        settler = Settler(engine, folder=folder, clock=clock)
        try:
            yield Books(house, engine, settler, clock)
        finally:
            settler.close()
            await engine.dispose()
            await house.engine.stop()  # it may be another one than the house began with


def by_meter(found: Reconciled) -> dict[EngineMeter, EngineDay]:
    return {day.meter: day for day in found.engines}


async def test_a_living_house_has_no_unexplained_token(database: Database, tmp_path: Path) -> None:
    """Streams and not, several answers, several prompts, an abort, a refusal, and a restart in the middle."""
    async with open_books(database, tmp_path) as books:
        await books.read()
        await books.ask()
        await books.ask(stream=True)
        await books.ask(n=2)
        await books.ask(n=3, stream=True)
        prompts = {"model": "test-model", "prompt": ["one", "two two two"], "n": 2, "max_tokens": 4}
        assert (await books.house.client.post("/v1/completions", json=prompts)).status_code == 200
        refused = await books.house.client.post(_CHAT, json=chat("[simulator fault=status:400]"))
        assert refused.status_code == 400
        await books.read()
        exact = by_meter(await books.reconciled())
        assert {day.counted - day.recorded for day in exact.values() if day.counted is not None} == {0}
        assert {share.kind for share in exact[EngineMeter.PROMPT].explained} == {
            "counted",
            "several_choices",
            "not_billed",
        }
        assert exact[EngineMeter.PROMPT].recorded > exact[EngineMeter.PROMPT].billed
        await books.leave()
        await books.leave(n=2)
        await books.read()
        await books.crash()
        await books.ask(n=2)
        await books.read()
        found = await books.reconciled()
        days = by_meter(found)
        assert {day.state for day in days.values()} == {DayState.RECONCILED}
        assert {day.unexplained for day in days.values()} == {0}
        assert {day.restarts for day in days.values()} == {1}
        kinds = {share.kind for share in days[EngineMeter.GENERATED].explained}
        assert kinds >= {"counted", "several_choices", "cut", "engine_restarted"}
        assert not [gap for proof in found.proofs for gap in proof.gaps]


async def test_a_request_that_goes_around_the_gateway_is_found_to_the_token(
    database: Database, tmp_path: Path
) -> None:
    async with open_books(database, tmp_path) as books:
        await books.read()
        await books.ask()
        around = f"{books.house.engine.base_url}{_CHAT}"
        body = chat() | {"model": SERVED, "max_tokens": 7}
        assert (await books.house.client.post(around, json=body)).status_code == 200
        await books.read()
        found = await books.reconciled()
        generated = by_meter(found)[EngineMeter.GENERATED]
        assert (generated.state, generated.unexplained) == (DayState.UNATTRIBUTED, 7)
        proofs = {proof.pair: [gap.kind for gap in proof.gaps] for proof in found.proofs if proof.gaps}
        assert proofs == {Pair.ENGINE_EVENTS: ["unattributed", "unattributed"]}
