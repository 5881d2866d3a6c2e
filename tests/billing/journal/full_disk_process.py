"""A journal on a disk that gets full and is given space again.

`limit`: the disk is the limit on this process' files (EFBIG); `disk`: FOLDER lies on a small file system
of its own, mostly taken by ballast (ENOSPC).
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

from app.core import ids
from app.core.clock import SystemClock
from billing.journal.frames import Tail, unpack
from billing.journal.model import Admitted, Settled, decode
from billing.journal.writer import JournalWriter
from billing.metering.model import Outcome
from tests.billing.journal.shop import Catalogue, settled

LIMIT = 16_384
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


class FileLimit:
    """No file of this process grows beyond `LIMIT`, until there is space."""

    def __init__(self, folder: Path) -> None:
        _, self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, self._hard))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._hard, self._hard))


class SmallDisk:
    """A file system on which `LIMIT` bytes are left, until there is space."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        state = os.statvfs(self._ballast.parent)
        self._ballast.write_bytes(bytes(state.f_bavail * state.f_frsize - LIMIT))

    def free(self) -> None:
        self._ballast.unlink()


DISKS = {"limit": FileLimit, "disk": SmallDisk}


async def main(folder: Path, kind: str) -> None:
    writer = JournalWriter.create(
        folder, incarnation_id=ids.incarnation_id(), clock=SystemClock(), commit_ms=1
    )
    disk = DISKS[kind](folder)
    disk.fill()
    answers = dict(await asyncio.gather(*(settle_one(writer) for _ in range(40))))
    durable = {request for request, answer in answers.items() if answer}
    assert 0 < len(durable) < 40
    assert ended(writer.path) == durable
    assert not writer.writable
    assert writer.failure is not None
    disk.free()
    while not writer.writable:  # it finds out by itself
        await asyncio.sleep(0.01)
    assert writer.failure is None
    request, answer = await settle_one(writer)
    assert answer
    await writer.close()
    assert_consistent(writer.path, delivered=durable | {request})


def assert_consistent(path: Path, *, delivered: set[ids.RequestId]) -> None:
    """Each admission and each end is there once, the refused ones as never delivered and free of charge."""
    frames, _ = unpack(path.read_bytes(), offset=0)
    records = [decode(frame.payload) for frame in frames]
    admitted = [record.request_id for record in records if isinstance(record, Admitted)]
    ends = [record for record in records if isinstance(record, Settled)]
    assert len(admitted) == len(set(admitted)) == len(ends) == 41
    assert {end.request_id for end in ends} == set(admitted)
    for end in ends:
        if end.request_id in delivered:
            assert (end.outcome, end.flags) == (Outcome.COMPLETED, ())
        else:
            assert (end.outcome, end.cost_picos, end.flags) == (Outcome.LOST, 0, ("not_delivered",))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
