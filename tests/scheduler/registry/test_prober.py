from __future__ import annotations

import asyncio

import pytest

from scheduler.registry.model import BackendSpec, Health, ProbeResult, ProbeStatus
from scheduler.registry.probe import EngineProbe
from scheduler.registry.prober import Prober
from scheduler.simulator.model import Fault, FaultKind
from scheduler.transport.client import EngineClient
from tests.scheduler.engines import running, until
from tests.scheduler.fakes import PASSED, Fleet, spec


class FakeProbe:
    """Says of every backend what the test put down for it; waits while it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, ProbeResult] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, backend: BackendSpec) -> ProbeResult:
        self.asked.append(backend.backend_id)
        await self.gate.wait()
        return self.answers.get(backend.backend_id, PASSED)


def prober(fleet: Fleet, probe: FakeProbe, *, draw: float = 0.5) -> Prober:
    return Prober(fleet.registry, probe, interval_s=2.0, clock=fleet.clock, draw=lambda: draw)


async def probe_due(each: Prober) -> int:
    return len(await asyncio.gather(*each.start_due()))


async def test_new_backends_are_probed_at_once_and_then_at_the_interval() -> None:
    fleet, probe = Fleet(spec("a"), spec("b")), FakeProbe()
    each = prober(fleet, probe)
    assert await probe_due(each) == 2
    fleet.clock.advance(1.9)
    assert await probe_due(each) == 0
    fleet.registry.apply([spec("a"), spec("b"), spec("c")])
    assert await probe_due(each) == 1
    fleet.clock.advance(0.1)
    assert await probe_due(each) == 2
    assert probe.asked == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize(("draw", "due_s"), [(0.0, 1.6), (1.0, 2.4)])
async def test_the_interval_is_jittered(draw: float, due_s: float) -> None:
    fleet, probe = Fleet(spec("a")), FakeProbe()
    each = prober(fleet, probe, draw=draw)
    await probe_due(each)
    fleet.clock.advance(due_s - 0.01)
    assert await probe_due(each) == 0
    fleet.clock.advance(0.02)
    assert await probe_due(each) == 1


async def test_a_probe_that_hangs_delays_no_other_and_is_not_doubled() -> None:
    fleet, probe = Fleet(spec("a")), FakeProbe()
    each = prober(fleet, probe)
    probe.gate.clear()
    (hanging,) = each.start_due()
    fleet.clock.advance(10)
    fleet.registry.apply([spec("a"), spec("b")])
    (other,) = each.start_due()
    probe.gate.set()
    await asyncio.gather(hanging, other)
    assert probe.asked == ["a", "b"]


async def test_a_backend_at_a_new_address_is_probed_at_once() -> None:
    fleet, probe = Fleet(spec("a")), FakeProbe()
    each = prober(fleet, probe)
    await probe_due(each)
    fleet.registry.apply([spec("a", base_url="http://elsewhere.test:1")])
    assert await probe_due(each) == 1


async def test_what_probes_find_becomes_health() -> None:
    fleet, probe = Fleet(spec("a")), FakeProbe()
    each = prober(fleet, probe)
    probe.answers["a"] = ProbeResult(ProbeStatus.UNREACHABLE, "engine_unreachable")
    for _ in range(2):
        await probe_due(each)
        fleet.clock.advance(2)
    (backend,) = fleet.registry.snapshot()
    assert (backend.health, backend.last_probe_detail) == (Health.DEAD, "engine_unreachable")


async def test_stopping_it_leaves_no_probe_running() -> None:
    fleet, probe = Fleet(spec("a")), FakeProbe()
    probe.gate.clear()
    task = asyncio.create_task(prober(fleet, probe).run())
    await until(lambda: bool(probe.asked))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("probe-")] == []


async def test_an_engine_is_asked_for_its_health_over_http() -> None:
    client = EngineClient()
    probe = EngineProbe(client, timeout_s=2)
    async with running() as (engine, _):
        backend = spec("a", base_url=engine.base_url)
        well = await probe(backend)
        assert (well.status, well.detail) == (ProbeStatus.PASSED, "status 200")
        assert well.latency_ms is not None
        no_such_route = await probe(spec("a", base_url=f"{engine.base_url}/v1"))
        assert (no_such_route.status, no_such_route.detail) == (ProbeStatus.PASSED, "status 404")
        engine.fault = Fault(FaultKind.DEAD)
        assert (await probe(backend)).status is ProbeStatus.REFUSED
    gone = await probe(backend)
    assert (gone.status, gone.detail) == (ProbeStatus.UNREACHABLE, "engine_unreachable")
    await client.close()


async def test_a_silent_engine_is_unreachable_after_the_probe_s_time() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    client = EngineClient()
    port = server.sockets[0].getsockname()[1]
    result = await EngineProbe(client, timeout_s=0.1)(spec("a", base_url=f"http://127.0.0.1:{port}"))
    assert (result.status, result.detail) == (ProbeStatus.UNREACHABLE, "engine_first_token_timeout")
    await client.close()
    server.close()
