"""What the scheduler needs of others, and what it offers to the relay that listens."""

from __future__ import annotations

from typing import Protocol

from app.core.errors import EngineError, Rejected
from scheduler.registry.model import BackendSpec, ProbeResult
from scheduler.transport.model import Deadlines, EngineRequest, Target
from scheduler.transport.ports import Sink


class Exchange(Protocol):
    """One request on its way at an engine."""

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class EngineClient(Protocol):
    """Sends requests to engines; `scheduler.transport.client.EngineClient` is the real one."""

    def send(self, target: Target, request: EngineRequest, *, deadlines: Deadlines, sink: Sink) -> Exchange:
        """Start an exchange. Never blocks; no callback comes before it returned."""
        ...


class DispatchSink(Protocol):
    """What a dispatch delivers into: synchronous callbacks, in order, none before `dispatch()` returned.

    `head piece* (end | error)`, or `error` alone. `head` comes when an attempt commits: from then on
    the answer is that backend's and nothing is retried.
    """

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, backend: BackendSpec) -> None: ...
    def piece(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def error(self, error: EngineError | Rejected) -> None: ...


class Probe(Protocol):
    """Asks a backend whether it is well. Raises nothing; bounded in time by itself."""

    async def __call__(self, spec: BackendSpec) -> ProbeResult: ...
