"""Probes every backend now and then, each at its own pace, so that none waits for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.core.clock import Clock
from app.core.ids import BackendId
from scheduler.ports import Probe
from scheduler.registry.model import BackendSpec
from scheduler.registry.service import Registry

JITTER_SHARE = 0.2
"""Probes spread by ± that share of the interval, so that gateways don't probe in step."""


class Prober:
    """Keeps the registry's probe results fresh. A backend new to it is probed at once."""

    def __init__(
        self, registry: Registry, probe: Probe, *, interval_s: float, clock: Clock, draw: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._probe = probe
        self._interval_s = interval_s
        self._clock = clock
        self._draw = draw
        self._due: dict[BackendId, tuple[BackendSpec, float]] = {}
        self._running: dict[BackendId, asyncio.Task[None]] = {}

    def start_due(self) -> list[asyncio.Task[None]]:
        """Start a probe of every backend that is due and not being probed; returns those tasks."""
        now = self._clock.monotonic()
        specs = {spec.backend_id: spec for spec in self._registry.specs()}
        self._due = {k: v for k, v in self._due.items() if k in specs and v[0].same_process(specs[k])}
        started = []
        for backend_id, spec in specs.items():
            known = self._due.get(backend_id)
            if backend_id in self._running or (known is not None and now < known[1]):
                continue
            wait_s = self._interval_s * (1 + JITTER_SHARE * (2 * self._draw() - 1))
            self._due[backend_id] = (spec, now + wait_s)
            task = asyncio.create_task(self._probe_one(spec), name=f"probe-{backend_id}")
            self._running[backend_id] = task
            started.append(task)
        return started

    async def run(self) -> None:
        """Probe until cancelled; then no probe is left running."""
        try:
            while True:
                self.start_due()
                await asyncio.sleep(self._interval_s / 10)
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _probe_one(self, spec: BackendSpec) -> None:
        try:
            self._registry.record_probe(spec, await self._probe(spec))
        finally:
            self._running.pop(spec.backend_id, None)
