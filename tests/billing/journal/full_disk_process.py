"""A journal on a disk that gets full and is given space again, by the limit on this process' files."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from app.core import ids
from app.core.clock import SystemClock
from billing.journal.frames import Tail, unpack
from billing.journal.model import Settled, decode
from billing.journal.writer import JournalWriter
from tests.billing.journal.shop import Catalogue, settled

LIMIT = 15_000
CATALOGUE = Catalogue(ids.tenant_id(), ids.allowance_id())


async def settle_one(writer: JournalWriter) -> tuple[ids.RequestId, bool]:
    admitted = CATALOGUE.admitted()
    writer.append(admitted)
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    writer.settle(settled(admitted), answer.set_result)
    return admitted.request_id, await answer


def ended(path: Path) -> set[ids.RequestId]:
    frames, tail = unpack(path.read_bytes(), offset=0)
    assert tail is Tail.CLEAN
    records = [decode(frame.payload) for frame in frames]
    return {record.request_id for record in records if isinstance(record, Settled)}


async def main(folder: Path) -> None:
    writer = JournalWriter.create(
        folder, incarnation_id=ids.incarnation_id(), clock=SystemClock(), commit_ms=1
    )
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    answers = dict(await asyncio.gather(*(settle_one(writer) for _ in range(40))))
    durable = {request for request, answer in answers.items() if answer}
    assert 0 < len(durable) < 40
    assert ended(writer.path) == durable
    assert writer.path.stat().st_size <= LIMIT
    assert not writer.writable
    assert writer.failure is not None
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    while not writer.writable:  # it finds out by itself
        await asyncio.sleep(0.01)
    assert writer.failure is None
    request, answer = await settle_one(writer)
    assert answer
    await writer.close()
    assert ended(writer.path) == durable | {request}


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
