"""The access log outlives a disk that does not take its lines."""

from __future__ import annotations

import asyncio
import errno

from app.core import ids
from app.core.clock import ManualClock
from app.gateway.access_log import AccessLog
from billing.journal.model import Refused


def refused() -> Refused:
    return Refused(
        request_id=ids.request_id(),
        at_ms=1,
        tenant_id=ids.tenant_id(),
        project_id=ids.project_id(),
        key_id=ids.key_id(),
        model_name=None,
        endpoint="/v1/chat/completions",
        reason="journal_unwritable",
        message="",
        status=503,
        limit=None,
        observed=None,
        retry_after_s=1.0,
    )


async def test_lines_that_a_full_disk_refuses_are_counted_and_later_ones_are_written() -> None:
    written: list[bytes] = []
    full = True

    def write(data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(data)

    log = AccessLog(write, clock=ManualClock(), flush_s=0.001)
    log.start()
    log.refused(refused())
    while not log.dropped:
        await asyncio.sleep(0.001)
    full = False
    late = refused()
    log.refused(late)
    while not written:
        await asyncio.sleep(0.001)
    assert late.request_id.encode() in written[0]
    full = True
    log.refused(refused())
    await log.close()
    assert log.dropped == 2
