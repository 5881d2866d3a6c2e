"""Birth and death by a real lock, in real processes that are really killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from app.core import ids
from app.core.clock import SystemClock
from app.core.ids import IncarnationId, RequestId
from billing.journal import lock
from billing.journal.frames import unpack
from billing.journal.model import Admitted, decode
from billing.journal.settler import Settler
from billing.journal.tail import JournalTail
from billing.journal.writer import JournalWriter
from tests.billing.journal import journals
from tests.billing.journal.shop import Catalogue, Shop

ROOT = Path(__file__).parents[3]
SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())


@contextmanager
def buyer(
    folder: Path, incarnation_id: IncarnationId, catalogue: Catalogue = SOMEONE
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has opened its journal and fills it until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.billing.journal.buyer_process", str(folder), incarnation_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(msgspec.json.encode(catalogue))
        process.stdin.close()
        try:
            assert process.stdout.readline() == b"opened\n"
            yield process
        finally:
            process.kill()


def kill_after(process: subprocess.Popen[bytes], acknowledged: int) -> set[RequestId]:
    """Kill it in the middle of its work; returns all that it acknowledged before."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(acknowledged)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    return {RequestId(line.decode().strip()) for line in lines if line.endswith(b"\n")}


def admitted_in(path: Path) -> set[RequestId]:
    """The requests whose admission is in the file."""
    frames, _ = unpack(path.read_bytes(), offset=0)
    records = [decode(frame.payload) for frame in frames]
    return {record.request_id for record in records if isinstance(record, Admitted)}


def test_a_journal_has_its_lock_from_its_first_moment_until_its_process_is_killed(tmp_path: Path) -> None:
    incarnation_id = ids.incarnation_id()
    with buyer(tmp_path, incarnation_id) as process:
        tail = JournalTail(lock.path_of(tmp_path, incarnation_id))
        assert not tail.try_bury()
        kill_after(process, 5)
        process.wait()
        assert tail.try_bury()
        tail.close()


def test_reading_and_closing_a_journal_elsewhere_does_not_free_its_lock(tmp_path: Path) -> None:
    """The trap of `fcntl` locks: the owner closes any descriptor of the file, and the lock is gone."""
    incarnation_id = ids.incarnation_id()
    path = lock.path_of(tmp_path, incarnation_id)
    descriptor = lock.create_locked(tmp_path, incarnation_id, head=b"head")
    os.close(os.open(path, os.O_RDWR))  # the owner itself
    JournalTail(path).close()
    probe = "import sys; from billing.journal.tail import JournalTail; from pathlib import Path; " + (
        "sys.exit(JournalTail(Path(sys.argv[1])).try_bury())"
    )
    command = [sys.executable, "-c", probe, str(path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    os.close(descriptor)
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 1


def test_a_child_process_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    incarnation_id = ids.incarnation_id()
    descriptor = lock.create_locked(tmp_path, incarnation_id, head=b"head")
    assert not os.get_inheritable(descriptor)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["/bin/cat"], bufsize=0, close_fds=False, **pipes) as child:  # type: ignore[call-overload]
        child.stdin.write(b"?\n")
        assert child.stdout.readline() == b"?\n"  # it is another program by now
        os.close(descriptor)
        tail = JournalTail(lock.path_of(tmp_path, incarnation_id))
        assert child.poll() is None
        assert tail.try_bury()
        tail.close()
        child.communicate()


async def test_the_settler_does_not_touch_a_journal_between_its_creation_and_its_locking(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    unborn = tmp_path / f"{incarnation_id}.journal.new"
    descriptor = os.open(unborn, os.O_CREAT | os.O_RDWR)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    assert unborn.exists()
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the settler had taken it
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]
    os.close(descriptor)


async def test_a_live_process_is_never_buried_and_a_killed_one_ends_each_request_once(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    path = lock.path_of(tmp_path, incarnation_id)
    settler = Settler(shop.engine, folder=tmp_path, clock=SystemClock(), batch=64)
    with buyer(tmp_path, incarnation_id, shop.catalogue) as process:
        while await settler.look() == 0:
            await asyncio.sleep(0.01)
        assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]
        acknowledged = kill_after(process, 300)
    admitted = admitted_in(path)
    await settler.look()
    events = await shop.events(incarnation_id)
    completed = {request for request, (outcome, _) in events.items() if outcome == "completed"}
    lost = {request for request, (outcome, _) in events.items() if outcome == "lost"}
    assert acknowledged <= completed
    assert completed | lost == set(events) == admitted
    assert lost
    flags = "SELECT DISTINCT flags FROM usage_event WHERE outcome = 'lost'"
    assert await shop.rows(flags) == [["tail_unknown"]]
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    assert await shop.outstanding(incarnation_id) == 0
    await shop.assert_the_books_agree()


async def test_a_clean_end_is_a_death_with_nothing_open(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    writer = JournalWriter.create(tmp_path, incarnation_id=incarnation_id, clock=shop.clock, commit_ms=1)
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    await journals.add(writer, shop.catalogue.admitted())
    await writer.close()
    assert await settler.look() == 1
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["closed"]
    assert await settler.look() == 0
    assert list(tmp_path.glob("*.journal")) == []


async def test_records_after_a_torn_end_of_a_dead_journal_are_not_given_up(
    shop: Shop, tmp_path: Path
) -> None:
    """A broken length looks like a torn end; what hides behind it keeps the incarnation open."""
    incarnation_id = await shop.incarnation()
    admitted = [shop.catalogue.admitted() for _ in range(2)]
    frames = journals.frames(incarnation_id, admitted)
    broken = bytearray(frames[1])
    broken[2] = 0x30  # reaches beyond the file
    journals.dead(tmp_path, incarnation_id, b"".join([frames[0], broken, frames[2]]))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    await settler.look()
    assert list(await shop.events(incarnation_id)) == [admitted[1].request_id]
    assert await shop.rows("SELECT byte_count FROM journal_damage") == [len(broken)]
    assert await shop.outstanding(incarnation_id) > 0
