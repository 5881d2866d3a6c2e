"""Asks an engine's `/health` over the connections that requests use.

The same client as for requests: a probe then proves the very path that a request takes, and costs
microseconds, which matters with hundreds of backends and several gateways.
"""

from __future__ import annotations

import asyncio

from app.core.errors import EngineError
from scheduler.ports import EngineClient
from scheduler.registry.model import BackendSpec, ProbeResult, ProbeStatus
from scheduler.transport.model import Deadlines, EngineRequest, parse_target

_REQUEST = EngineRequest("GET", "/health", ((b"accept", b"*/*"),), b"")


class EngineProbe:
    """A probe by HTTP.

    Passed: any answer below 500 (an engine without that route is still there).   Refused: 5xx, as vLLM
    answers once its core is dead.   Unreachable: no whole answer within `timeout_s`.
    """

    def __init__(self, client: EngineClient, *, timeout_s: float = 2.0) -> None:
        self._client = client
        self._deadlines = Deadlines(timeout_s, timeout_s, timeout_s, timeout_s)

    async def __call__(self, spec: BackendSpec) -> ProbeResult:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int | EngineError] = loop.create_future()
        started = loop.time()
        target = parse_target(spec.base_url)
        exchange = self._client.send(target, _REQUEST, deadlines=self._deadlines, sink=_StatusSink(answer))
        try:
            found = await answer
        finally:
            exchange.cancel()
        if isinstance(found, EngineError):
            return ProbeResult(ProbeStatus.UNREACHABLE, found.code)
        status = ProbeStatus.PASSED if found < 500 else ProbeStatus.REFUSED
        return ProbeResult(status, f"status {found}", (loop.time() - started) * 1000)


class _StatusSink:
    """Resolves to the status of a whole answer, or to the error instead."""

    def __init__(self, answer: asyncio.Future[int | EngineError]) -> None:
        self._answer = answer
        self._status = 0

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status = status

    def piece(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        self._resolve(self._status)

    def error(self, error: EngineError) -> None:
        self._resolve(error)

    def _resolve(self, found: int | EngineError) -> None:
        if not self._answer.done():
            self._answer.set_result(found)
