"""The dispatcher over the real client and engines on real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from app.core.clock import SystemClock
from app.core.errors import EngineError, FirstTokenTimeout, Rejected, StreamBroken
from app.core.ids import BackendId
from scheduler.dispatch import Dispatch, Dispatcher
from scheduler.model import AttemptOutcome
from scheduler.registry.model import Health
from scheduler.registry.probe import EngineProbe
from scheduler.registry.prober import Prober
from scheduler.registry.service import Registry
from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import Fault, FaultKind, parse_fault
from scheduler.transport.client import EngineClient
from scheduler.transport.model import Deadlines, EngineRequest
from tests.scheduler.engines import HASTY, PATIENT, Answer, chat, running, until
from tests.scheduler.fakes import demand, spec


class LiveFleet:
    """Engines a, b, … behind a dispatcher; probed once, and again whenever a test asks."""

    def __init__(self, engines: dict[str, SimulatedEngine]) -> None:
        self.engines = engines
        self.client = EngineClient()
        clock = SystemClock()
        self.registry = Registry(clock=clock)
        self.dispatcher = Dispatcher(self.registry, self.client, clock=clock, draw=Random(1).random)
        self.prober = Prober(
            self.registry,
            EngineProbe(self.client, timeout_s=1),
            interval_s=1e-9,
            clock=clock,
            draw=lambda: 0.5,
        )
        specs = [spec(n, base_url=e.base_url, max_concurrent=100) for n, e in engines.items()]
        self.registry.apply(specs)

    async def probe(self) -> None:
        await asyncio.gather(*self.prober.start_due())

    def start(self, request: EngineRequest, *, deadlines: Deadlines = PATIENT) -> tuple[Dispatch, Answer]:
        answer = Answer()
        return self.dispatcher.dispatch(demand(), lambda _: request, deadlines=deadlines, sink=answer), answer

    async def ask(self, deadlines: Deadlines = PATIENT, **fields: Any) -> Answer:
        _, answer = self.start(chat(**fields), deadlines=deadlines)
        await answer.over.wait()
        return answer

    def health(self, name: str) -> Health:
        return self.registry.get(BackendId(name)).health(SystemClock().monotonic())

    def idle(self) -> bool:
        return all(b.in_flight == 0 for b in self.registry.snapshot())


@asynccontextmanager
async def fleet(names: str = "ab", **options: Any) -> AsyncIterator[LiveFleet]:
    async with AsyncExitStack() as stack:
        engines = {n: (await stack.enter_async_context(running(**options)))[0] for n in names}
        live = LiveFleet(engines)
        await live.probe()
        yield live
        assert live.idle(), "every place was given back"
        await live.client.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("fault", ["reset", "hang", "hang_after_head", "status:500", "status:503", "dead"])
async def test_whatever_one_engine_does_before_its_first_byte_the_other_answers(
    fault: str, stream: bool
) -> None:
    async with fleet() as live:
        live.engines["a"].fault = parse_fault(fault)
        for _ in range(8):
            answer = await live.ask(deadlines=HASTY, stream=stream)
            assert (answer.status, answer.error_found, answer.backend) == (200, None, "b")
        assert live.engines["b"].stats.outcomes["length"] == 8


async def test_a_killed_engine_costs_no_request_and_a_restarted_one_comes_back() -> None:
    async with fleet() as live:
        await live.engines["a"].stop()
        served: Counter[str | None] = Counter()
        for _ in range(40):
            answer = await live.ask()
            assert answer.status == 200
            served[answer.backend] += 1
        assert served == {"b": 40}
        await live.probe()
        await live.probe()
        assert live.health("a") is Health.DEAD
        await live.engines["a"].start()
        await live.probe()
        for _ in range(40):
            served[(await live.ask()).backend] += 1
        assert served["a"] > 0
        assert live.health("a") is Health.READY


async def test_a_hung_engine_with_a_good_health_route_is_ejected_within_a_few_requests() -> None:
    async with fleet() as live:
        live.engines["a"].fault = Fault(FaultKind.HANG)
        answers = await asyncio.gather(*(live.ask(deadlines=HASTY, stream=True) for _ in range(30)))
        assert {(a.status, a.backend) for a in answers} == {(200, "b")}
        await live.probe()
        assert live.health("a") is Health.EJECTED
        hung_before = live.engines["a"].stats.outcomes["abort"]
        await asyncio.gather(*(live.ask(deadlines=HASTY, stream=True) for _ in range(30)))
        assert live.engines["a"].stats.outcomes["abort"] == hung_before


async def test_the_only_engine_is_never_ejected() -> None:
    async with fleet("a") as live:
        live.engines["a"].fault = Fault(FaultKind.HANG)
        for _ in range(4):
            assert isinstance((await live.ask(deadlines=HASTY)).error_found, FirstTokenTimeout)
        assert live.health("a") is Health.EJECTED
        live.engines["a"].fault = None
        assert (await live.ask()).status == 200


@pytest.mark.parametrize("fault", ["die:2", "stall:2"])
async def test_an_engine_that_breaks_off_mid_stream_is_told_with_what_came_so_far(fault: str) -> None:
    async with fleet() as live:
        answer = await live.ask(deadlines=HASTY, stream=True, knobs=f"fault={fault}")
        assert isinstance(answer.error_found, StreamBroken)
        assert len(answer.events) == 3
        assert sum(e.stats.running for e in live.engines.values()) <= 1


async def test_overload_is_answered_elsewhere_and_by_503_only_when_all_are_full() -> None:
    async with fleet(max_num_seqs=1, max_queued=0) as live:
        held = [live.start(chat(stream=True, max_tokens=9000, knobs="chunk_ms=50")) for _ in range(2)]
        await asyncio.gather(*(answer.begun.wait() for _, answer in held))
        answer = await live.ask()
        assert (answer.status, answer.json["error"]["code"]) == (503, 503)
        held[0][0].cancel()
        await until(lambda: sum(e.stats.running for e in live.engines.values()) == 1)
        assert (await live.ask()).status == 200
        assert {live.health(n) for n in "ab"} <= {Health.READY, Health.OVERLOADED}
        held[1][0].cancel()


async def test_a_listener_that_leaves_stops_the_engine_whether_streamed_or_not() -> None:
    async with fleet("a", chunk_ms=20) as live:
        stats = live.engines["a"].stats
        for stream in (True, False):
            aborted = stats.outcomes["abort"]
            dispatch, _ = live.start(chat(stream=stream, max_tokens=9000))
            await until(lambda: stats.running == 1)
            dispatch.cancel()
            await until(lambda aborted=aborted: stats.outcomes["abort"] == aborted + 1)  # type: ignore[misc]
        assert live.idle()


async def test_a_fleet_without_a_living_engine_says_so_at_once() -> None:
    async with fleet("a") as live:
        await live.engines["a"].stop()
        await live.probe()
        await live.probe()
        answer = await live.ask()
        assert isinstance(answer.error_found, Rejected)
        assert answer.error_found.status == 503


async def test_under_random_faults_and_departures_every_request_ends_once_and_no_place_is_lost() -> None:
    random = Random(7)
    faults = [
        "",
        "",
        "",
        "reset",
        "die:1",
        "stall:1",
        "hang",
        "status:500",
        "status:503",
        "status:400",
        "error:1",
    ]
    async with fleet("abc", chunk_ms=1) as live:

        async def one() -> None:
            knob = random.choice(faults)
            knobs = f"fault={knob}" if knob else ""
            dispatch, answer = live.start(chat(stream=random.random() < 0.7, knobs=knobs), deadlines=HASTY)
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.02)
                dispatch.cancel()
            else:
                await answer.over.wait()
                assert answer.error_found is None or isinstance(answer.error_found, EngineError | Rejected)
            assert AttemptOutcome.RUNNING not in {a.outcome for a in dispatch.attempts}

        for _ in range(5):
            await asyncio.gather(*(one() for _ in range(40)))
        assert live.idle()
        await until(lambda: all(e.stats.running == 0 for e in live.engines.values()))
        assert live.dispatcher.metrics.snapshot().dispatches == 200
