"""A hand-written fleet: a fake engine client at the port, and a sink that writes down what it hears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core import ids
from app.core.clock import ManualClock
from app.core.errors import EngineError, Rejected
from app.core.ids import BackendId, DeploymentId, ModelId
from scheduler.dispatch import Dispatch, Dispatcher
from scheduler.model import Demand
from scheduler.registry.backend import HealthLimits
from scheduler.registry.model import BackendSpec, ProbeResult, ProbeStatus
from scheduler.registry.service import Registry
from scheduler.transport.model import Deadlines, EngineRequest, Target
from scheduler.transport.ports import Sink

DEPLOYMENT = DeploymentId("dep_1")
DEADLINES = Deadlines(connect_s=1, first_byte_s=5, idle_s=5, total_s=60)
PASSED = ProbeResult(ProbeStatus.PASSED)
HEADERS = [(b"content-type", b"application/json")]


def spec(name: str, **changes: object) -> BackendSpec:
    values: dict[str, object] = {
        "backend_id": BackendId(name),
        "deployment_id": DEPLOYMENT,
        "base_url": f"http://{name}.test:8000",
        "engine": "vllm",
        "served_model": f"served-by-{name}",
        "max_concurrent": 8,
    }
    return BackendSpec(**(values | changes))  # type: ignore[arg-type]


def demand(**changes: object) -> Demand:
    values: dict[str, object] = {
        "request_id": ids.request_id(),
        "deployment_id": DEPLOYMENT,
        "model_id": ModelId("mdl_1"),
        "prompt_tokens_bound": 400,
        "max_output_tokens": 100,
    }
    return Demand(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeExchange:
    """What the dispatcher asked of one engine; a test plays the engine by calling its `sink`."""

    target: Target
    request: EngineRequest
    sink: Sink
    cancelled: bool = False
    paused: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    @property
    def backend(self) -> str:
        return self.target.host.removesuffix(".test")

    def answer(self, status: int, *pieces: bytes) -> None:
        self.sink.head(status, HEADERS)
        for piece in pieces:
            self.sink.piece(piece)
        self.sink.end()


class FakeClient:
    """Keeps every exchange for the test to play."""

    def __init__(self) -> None:
        self.exchanges: list[FakeExchange] = []

    def send(
        self, target: Target, request: EngineRequest, *, deadlines: Deadlines, sink: Sink
    ) -> FakeExchange:
        exchange = FakeExchange(target, request, sink)
        self.exchanges.append(exchange)
        return exchange

    @property
    def last(self) -> FakeExchange:
        return self.exchanges[-1]


@dataclass
class Heard:
    """A sink that writes down all it hears."""

    status: int | None = None
    backend: str | None = None
    pieces: list[bytes] = field(default_factory=list)
    ended: int = 0
    errors: list[EngineError | Rejected] = field(default_factory=list)
    on_head: Callable[[], None] = lambda: None

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, backend: BackendSpec) -> None:
        assert self.status is None, "one head"
        self.status, self.backend = status, backend.backend_id
        self.on_head()

    def piece(self, data: bytes) -> None:
        assert self.status is not None, "head before piece"
        self.pieces.append(data)

    def end(self) -> None:
        self.ended += 1

    def error(self, error: EngineError | Rejected) -> None:
        self.errors.append(error)


class Fleet:
    """A registry of probed backends, a dispatcher over a fake client, and a clock that stands still."""

    def __init__(
        self, *specs: BackendSpec, limits: HealthLimits | None = None, max_attempts: int = 3
    ) -> None:
        self.draw = 0.0
        self.clock = ManualClock()
        self.registry = Registry(clock=self.clock, limits=limits)
        self.client = FakeClient()
        self.dispatcher = Dispatcher(
            self.registry, self.client, clock=self.clock, draw=lambda: self.draw, max_attempts=max_attempts
        )
        self.registry.apply(specs)
        self.probe_all()

    def probe_all(self, result: ProbeResult = PASSED) -> None:
        for each in self.registry.specs():
            self.registry.record_probe(each, result)

    def dispatch(self, sink: Heard | None = None, **changes: object) -> tuple[Dispatch, Heard]:
        heard = sink or Heard()
        return self.dispatcher.dispatch(demand(**changes), call, deadlines=DEADLINES, sink=heard), heard

    def in_flight(self) -> dict[str, int]:
        return {b.backend_id: b.in_flight for b in self.registry.snapshot()}


def call(backend: BackendSpec) -> EngineRequest:
    return EngineRequest("POST", "/v1/chat/completions", (), backend.served_model.encode())
