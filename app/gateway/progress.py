"""Which requests run: one progress row for all of them every so often, and their end at shutdown."""

from __future__ import annotations

import asyncio
import contextlib

from app.catalog.snapshot import Snapshot
from app.core.clock import Clock
from app.core.errors import Rejected, RejectReason
from app.gateway import auth
from app.gateway.ports import Journal
from app.gateway.relay import Relay
from billing.journal.model import Progress


class Running:
    """The relays of the process that have not ended."""

    def __init__(self, journal: Journal, *, clock: Clock, interval_s: float) -> None:
        self._journal = journal
        self._clock = clock
        self._interval_s = interval_s
        self._relays: set[Relay] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._relays)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for slow clients, over all requests."""
        return sum(relay.outbox.buffered_bytes for relay in self._relays)

    def add(self, relay: Relay) -> None:
        self._relays.add(relay)

    def discard(self, relay: Relay) -> None:
        self._relays.discard(relay)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._write_on(), name="progress")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def write(self) -> None:
        """Append where each request stands, if any runs at an engine."""
        readings = tuple(reading for relay in self._relays if (reading := relay.reading()) is not None)
        if readings:
            self._journal.append(Progress(at_ms=self._clock.now_ms(), readings=readings))

    def abort_all(self) -> None:
        """End what still runs, because the process does: told to the client, settled, not billed."""
        for relay in tuple(self._relays):
            relay.abort(shutting_down())

    def cut_suspended(self, snapshot: Snapshot) -> None:
        """End what runs of suspended tenants that are to be cut: told to the client, settled, not billed."""
        for relay in tuple(self._relays):
            if auth.is_cut(relay.tenant_id, snapshot):
                relay.abort(auth.suspended())

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.write()


def shutting_down() -> Rejected:
    """The refusal of a process that stops."""
    return Rejected(
        RejectReason.SHUTTING_DOWN, "This gateway is shutting down. Try again.", status=503, retry_after_s=1.0
    )
