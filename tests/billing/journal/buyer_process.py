"""A gateway's journal in a process of its own, for tests that kill it: admits and settles until then.

`python -m tests.billing.journal.buyer_process FOLDER INCARNATION < catalogue.json`; writes `opened`, then
the id of each request whose settlement was acknowledged, a line each.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from app.core.clock import SystemClock
from app.core.ids import IncarnationId
from billing.journal.model import Progress, Reading
from billing.journal.writer import JournalWriter
from billing.metering.model import Usage
from tests.billing.journal.shop import Catalogue, settled


async def buy(writer: JournalWriter, catalogue: Catalogue) -> None:
    """Admit one request, progress with another that never ends, settle the first, say so when durable."""
    admitted, endless = catalogue.admitted(), catalogue.admitted()
    end = settled(admitted)
    writer.append(admitted)
    writer.append(endless)
    reading = Reading(endless.request_id, end.backend_id or "", Usage(1, output=1), 10)  # type: ignore[arg-type]
    writer.append(Progress(admitted.at_ms, (reading,)))
    durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    writer.settle(end, durable.set_result)
    if await durable:
        os.write(1, f"{admitted.request_id}\n".encode())


async def main(folder: str, incarnation_id: str) -> None:
    catalogue = msgspec.json.decode(sys.stdin.buffer.read(), type=Catalogue)
    writer = JournalWriter.create(
        Path(folder), incarnation_id=IncarnationId(incarnation_id), clock=SystemClock(), commit_ms=2
    )
    os.write(1, b"opened\n")
    while True:
        await asyncio.gather(*(buy(writer, catalogue) for _ in range(20)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
