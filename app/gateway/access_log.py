"""One JSON line for each request, written in batches beside the loop. No secret, no prompt, no answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from app.core.clock import Clock
from app.core.money import format_picos
from app.gateway.model import Admission
from billing.journal.model import Refused, Settled

MAX_LINES = 50_000
"""Lines kept while the disk is slow; beyond, lines are dropped and counted."""
_encode = msgspec.json.encode


class AccessLog:
    """Gathers lines and hands them to `write` in a thread, every `flush_s`."""

    def __init__(self, write: Callable[[bytes], object], *, clock: Clock, flush_s: float = 0.25) -> None:
        self._write = write
        self._clock = clock
        self._flush_s = flush_s
        self._lines: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._flush_on(), name="access-log")

    async def close(self) -> None:
        """Write what is gathered."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._flush()

    def settled(self, admission: Admission, record: Settled) -> None:
        """The line of an admitted request."""
        usage = record.usage
        self._add(
            {
                "event": "request",
                "at_ms": record.at_ms,
                "request_id": record.request_id,
                "tenant_id": admission.record.tenant_id,
                "key_id": admission.record.key_id,
                "model": admission.record.model_name,
                "endpoint": admission.record.endpoint,
                "streamed": admission.record.streamed,
                "backend_id": record.backend_id,
                "status": record.status,
                "outcome": record.outcome,
                "error_code": record.error_code,
                "usage_source": record.usage_source,
                "input": usage.input,
                "input_cached": usage.input_cached,
                "output": usage.output,
                "cost": format_picos(record.cost_picos),
                "currency": admission.record.currency,
                "ttft_ms": record.ttft_ms,
                "ms": record.duration_ms,
                "attempts": len(record.attempts),
            }
        )

    def refused(self, record: Refused) -> None:
        """The line of a known key's refused request."""
        self._add(
            {
                "event": "refusal",
                "at_ms": record.at_ms,
                "request_id": record.request_id,
                "tenant_id": record.tenant_id,
                "key_id": record.key_id,
                "model": record.model_name,
                "endpoint": record.endpoint,
                "status": record.status,
                "reason": record.reason,
            }
        )

    def _add(self, line: dict[str, Any]) -> None:
        if len(self._lines) < MAX_LINES:
            self._lines.append(_encode(line))
        else:
            self.dropped += 1

    async def _flush_on(self) -> None:
        while True:
            await asyncio.sleep(self._flush_s)
            await self._flush()

    async def _flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._write, b"\n".join(lines) + b"\n")
            except OSError:  # as a rule the journal's full disk: the lines are lost, those to come are not
                self.dropped += len(lines)
