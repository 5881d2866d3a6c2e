"""The writer answers each settlement once, after the disk has it, and survives a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.core import ids
from app.core.clock import ManualClock
from billing.journal import hole, lock
from billing.journal.file import JournalFile
from billing.journal.frames import Tail, unpack
from billing.journal.model import Opened, Progress, Record, Settled, decode
from billing.journal.room import Limits
from billing.journal.sync import SyncThread
from billing.journal.undelivered import undelivered
from billing.journal.writer import JournalWriter
from billing.metering.model import Outcome
from tests.billing.journal.shop import Catalogue, settled

ROOT = Path(__file__).parents[3]
SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())


def open_writer(folder: Path, *, commit_ms: int = 2) -> JournalWriter:
    return JournalWriter.create(
        folder, incarnation_id=ids.incarnation_id(), clock=ManualClock(), commit_ms=commit_ms
    )


async def settle(writer: JournalWriter, record: Settled) -> bool:
    """What the writer answers."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    writer.settle(record, answer.set_result)
    return await answer


def records_in(path: Path) -> list[Record]:
    frames, tail = unpack(path.read_bytes(), offset=0)
    assert tail is Tail.CLEAN
    return [decode(frame.payload) for frame in frames]


async def test_a_journal_begins_with_who_writes_it(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    [first] = records_in(writer.path)
    assert isinstance(first, Opened)
    assert writer.path == lock.path_of(tmp_path, first.incarnation_id)
    assert [path.name for path in tmp_path.iterdir()] == [writer.path.name]
    await writer.close()


async def test_an_answered_settlement_is_in_the_file_after_its_admission(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    admitted = SOMEONE.admitted()
    writer.append(admitted)
    assert await settle(writer, settled(admitted))
    assert records_in(writer.path)[1:] == [admitted, settled(admitted)]
    await writer.close()


async def test_an_admission_is_in_the_file_after_one_turn_of_the_loop_without_any_sync(
    tmp_path: Path,
) -> None:
    """So a killed process loses none whose answer anybody has seen."""
    writer = open_writer(tmp_path, commit_ms=1000)
    admitted = [SOMEONE.admitted() for _ in range(3)]
    for each in admitted:
        writer.append(each)
    await asyncio.sleep(0)
    assert records_in(writer.path)[1:] == admitted
    assert writer.groups == 0
    await writer.close()


async def test_records_keep_the_order_of_the_moves_over_many_groups(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    moves: list[Record] = []
    for number in range(300):
        admitted = SOMEONE.admitted(at_ms=number)
        moves += [admitted, settled(admitted)]
        writer.append(admitted)
        writer.settle(settled(admitted), lambda durable: None)
        if number % 7 == 0:
            await asyncio.sleep(0)
    await writer.close()
    assert records_in(writer.path)[1:] == moves
    assert writer.groups < len(moves)


async def test_many_settlements_at_once_share_a_few_syncs(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, commit_ms=20)
    answers = await asyncio.gather(*(settle(writer, settled(SOMEONE.admitted())) for _ in range(500)))
    assert answers == [True] * 500
    assert writer.groups <= 5
    await writer.close()


async def test_an_answer_never_comes_from_within_the_call(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, commit_ms=0)
    answers: list[bool] = []
    writer.settle(settled(SOMEONE.admitted()), answers.append)
    assert answers == []
    await writer.close()
    assert answers == [True]
    writer.settle(settled(SOMEONE.admitted()), answers.append)
    assert answers == [True]
    await asyncio.sleep(0)
    assert answers == [True, False]


async def test_a_caller_that_fails_does_not_keep_the_answers_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(durable: bool) -> None:
        raise KeyError(durable)

    writer = open_writer(tmp_path, commit_ms=50)
    answers: list[bool] = []
    for on_durable in (answers.append, fails, answers.append):
        writer.settle(settled(SOMEONE.admitted()), on_durable)
    await writer.close()
    assert answers == [True, True]
    assert "journal_caller_failed" in caplog.messages


async def test_close_writes_what_is_queued_and_frees_the_lock(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, commit_ms=1000)
    admitted = SOMEONE.admitted()
    writer.append(admitted)
    await writer.close()
    await writer.close()
    assert records_in(writer.path)[1:] == [admitted]
    descriptor = os.open(writer.path, os.O_RDONLY)
    assert lock.try_lock(descriptor)
    os.close(descriptor)


async def test_an_incarnation_id_is_used_once(tmp_path: Path) -> None:
    incarnation_id = ids.incarnation_id()
    clock = ManualClock()
    writer = JournalWriter.create(tmp_path, incarnation_id=incarnation_id, clock=clock, commit_ms=1)
    with pytest.raises(FileExistsError):
        JournalWriter.create(tmp_path, incarnation_id=incarnation_id, clock=clock, commit_ms=1)
    assert len(records_in(writer.path)) == 1
    await writer.close()


async def test_a_disk_that_can_not_sync_is_not_trusted_again(tmp_path: Path) -> None:
    """A pipe takes writes and refuses to be synced."""
    receiver, sender = os.pipe()
    file, clock = JournalFile(sender, path=tmp_path / "pipe"), ManualClock()
    writer = JournalWriter(file, syncer=SyncThread(file, clock=clock, commit_s=0.001), clock=clock)
    assert not await settle(writer, settled(SOMEONE.admitted()))
    assert not writer.writable
    assert writer.failure is not None
    assert "can't be synced" in writer.failure
    assert not await settle(writer, settled(SOMEONE.admitted()))
    await writer.close()
    os.close(receiver)


FULL = [sys.executable, "-m", "tests.billing.journal.full_disk_process"]
MOUNT = 'mount -t tmpfs -o size=256k none "$0" && exec "$@"'


def may_mount(folder: Path) -> bool:
    """Whether this account may mount a file system, in a namespace that ends with its process."""
    command = ["unshare", "--mount", "sh", "-c", MOUNT, str(folder), "true"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def test_a_full_disk_stops_admission_and_space_brings_it_back(tmp_path: Path) -> None:
    """On a small disk of its own where one can be mounted, else by a limit on the size of files."""
    command = [*FULL, str(tmp_path), "limit"]
    if may_mount(tmp_path):
        command = ["unshare", "--mount", "sh", "-c", MOUNT, str(tmp_path), *FULL, str(tmp_path), "disk"]
    subprocess.run(command, cwd=ROOT, check=True)


def test_a_file_that_may_not_grow_stops_admission_until_it_may(tmp_path: Path) -> None:
    subprocess.run([*FULL, str(tmp_path), "limit"], cwd=ROOT, check=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_journal_that_holds_its_share_admits_no_more_but_records_every_end_until_it_is_posted(
    tmp_path: Path,
) -> None:
    writer = JournalWriter.create(
        tmp_path,
        incarnation_id=ids.incarnation_id(),
        clock=ManualClock(),
        commit_ms=1,
        limits=Limits(max_bytes=2 * 1024 * 1024),
    )
    bulk = {"error": "x" * 60_000}
    while writer.writable:
        assert await settle(writer, settled(SOMEONE.admitted(), attempts=(bulk,)))
    assert writer.failure is not None
    assert "not posted" in writer.failure
    assert 1024 * 1024 < writer.held_bytes < 4 * 1024 * 1024
    assert await settle(writer, settled(SOMEONE.admitted()))
    hole.punch(writer.path, end=writer.path.stat().st_size)
    await until(lambda: writer.writable)
    assert writer.failure is None
    await writer.close()
    assert writer.held_bytes == 0


async def test_a_disk_with_less_than_the_reserve_left_admits_nothing(tmp_path: Path) -> None:
    writer = JournalWriter.create(
        tmp_path,
        incarnation_id=ids.incarnation_id(),
        clock=ManualClock(),
        commit_ms=1,
        limits=Limits(free_bytes=2**62),
    )
    assert not writer.writable
    assert writer.failure is not None
    assert "bytes left" in writer.failure
    assert await settle(writer, settled(SOMEONE.admitted()))
    await writer.close()


class CrowdedDisk(JournalFile):
    """A disk that has no room until somebody makes some."""

    crowded = True

    def measure(self) -> None:
        self.lack = "the disk is crowded" if self.crowded else None


async def test_a_journal_that_begins_without_room_admits_once_there_is_some_with_no_request_to_wake_it(
    tmp_path: Path,
) -> None:
    disks: list[CrowdedDisk] = []

    def open_file(descriptor: int, *, path: Path) -> JournalFile:
        disks.append(CrowdedDisk(descriptor, path=path))
        return disks[-1]

    writer = JournalWriter.create(
        tmp_path,
        incarnation_id=ids.incarnation_id(),
        clock=ManualClock(),
        commit_ms=1,
        open_file=open_file,
    )
    assert writer.failure == "the disk is crowded"
    disks[0].crowded = False
    await until(lambda: writer.writable)
    await writer.close()


class FailingDisk(JournalFile):
    """A disk that refuses what it is told to."""

    error: OSError | None = None

    def write(self, pieces: Sequence[bytes]) -> int:
        if self.error is None or not pieces:
            return super().write(pieces)
        return self._cut(pieces, 0, error=self.error)


def test_a_full_disk_is_not_called_writable_because_nothing_was_written(tmp_path: Path) -> None:
    """A retry takes along what came in its turn of the loop, whose own turn then finds nothing to write."""
    path = tmp_path / "a.journal"
    file = FailingDisk(os.open(path, os.O_CREAT | os.O_RDWR), path=path)
    file.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert file.write([b"frame"]) == 0
    assert file.write([]) == 0
    assert not file.writable
    file.error = None
    assert file.write([b"frame"]) == 1
    assert file.writable
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_a_refused_settlement_is_recorded_later_as_one_that_nobody_got_the_end_of(
    tmp_path: Path, number: int
) -> None:
    disks: list[FailingDisk] = []

    def open_file(descriptor: int, *, path: Path) -> FailingDisk:
        disks.append(FailingDisk(descriptor, path=path))
        return disks[0]

    writer = JournalWriter.create(
        tmp_path, incarnation_id=ids.incarnation_id(), clock=ManualClock(), commit_ms=1, open_file=open_file
    )
    completed, cancelled = SOMEONE.admitted(), SOMEONE.admitted()
    writer.append(completed)
    writer.append(cancelled)
    await asyncio.sleep(0)
    disks[0].error = OSError(number, os.strerror(number))
    ends = [settled(completed), settled(cancelled, outcome=Outcome.CLIENT_CANCELLED)]
    assert await asyncio.gather(*(settle(writer, end) for end in ends)) == [False, False]
    assert not writer.writable
    for at_ms in (1, 2, 3):
        writer.append(Progress(at_ms=at_ms, readings=()))
        await asyncio.sleep(0)
    assert writer.backlog == 3, "of the progress rows only the last is kept"
    disks[0].error = None
    await until(lambda: writer.writable)
    await writer.close()
    late = records_in(writer.path)[3:]
    assert late == [undelivered(ends[0]), ends[1], Progress(at_ms=3, readings=())]
    assert isinstance(late[0], Settled)
    assert (late[0].outcome, late[0].cost_picos, late[0].usage) == (Outcome.LOST, 0, ends[0].usage)


async def test_a_broken_disk_is_told_of_once_in_the_loop(tmp_path: Path) -> None:
    receiver, sender = os.pipe()
    file, clock = JournalFile(sender, path=tmp_path / "pipe"), ManualClock()
    writer = JournalWriter(file, syncer=SyncThread(file, clock=clock, commit_s=0.001), clock=clock)
    told: list[bool] = []
    writer.on_broken = lambda: told.append(writer.writable)
    assert not await settle(writer, settled(SOMEONE.admitted()))
    assert not await settle(writer, settled(SOMEONE.admitted()))
    assert told == [False]
    await writer.close()
    os.close(receiver)
