"""A torn or corrupt journal costs what was torn or corrupt: every other record is read, wherever it lies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core import ids
from app.core.clock import ManualClock
from billing.journal.frames import Frame, unpack
from billing.journal.model import Record
from billing.journal.settler import Settler
from billing.journal.tail import JournalTail, State
from tests.billing.journal import journals
from tests.billing.journal.shop import Catalogue, Shop, settled

SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())
INCARNATION = ids.incarnation_id()


def some_frames(requests: int) -> list[bytes]:
    records: list[Record] = []
    for _ in range(requests):
        admitted = SOMEONE.admitted()
        records += [admitted, settled(admitted)]
    return journals.frames(INCARNATION, records)


def read_all(path: Path, *, dead: bool = True) -> tuple[set[bytes], list[tuple[int, int]], JournalTail]:
    """The payloads that are read of a journal, and the damages passed over on the way."""
    tail = JournalTail(path)
    if dead:
        assert tail.try_bury()
    found: list[Frame] = []
    damages: list[tuple[int, int]] = []
    quiet = 0
    while quiet < 3:
        fresh = tail.read()
        found += fresh
        quiet = 0 if fresh else quiet + 1
        if tail.damage is not None:
            damages.append((tail.damage.start, tail.damage.end))
            tail.pass_over()
    tail.close()
    return {frame.payload for frame in found}, damages, tail


def payloads(frames: list[bytes]) -> list[bytes]:
    return [frame.payload for frame in unpack(b"".join(frames), offset=0)[0]]


def test_each_flipped_byte_of_a_small_journal_costs_the_record_that_it_lies_in(tmp_path: Path) -> None:
    frames = some_frames(2)
    whole, data = payloads(frames), b"".join(frames)
    starts = [sum(map(len, frames[:number])) for number in range(len(frames))]
    for position in range(len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 0x55
        victim = max(number for number, start in enumerate(starts) if start <= position)
        read, damages, _ = read_all(journals.dead(tmp_path, INCARNATION, bytes(spoiled)))
        assert read == set(whole) - {whole[victim]}, f"byte {position}"
        end = starts[victim] + len(frames[victim])
        is_torn = victim == len(frames) - 1 and not damages  # its length reaches beyond the end
        assert is_torn or damages == [(starts[victim], end)], f"byte {position}"


def test_each_cut_in_the_middle_of_a_small_journal_costs_the_record_that_was_cut(tmp_path: Path) -> None:
    frames = some_frames(2)
    whole = payloads(frames)
    for kept in range(len(frames[1])):
        data = frames[0] + frames[1][:kept] + b"".join(frames[2:])
        read, damages, _ = read_all(journals.dead(tmp_path, INCARNATION, data))
        assert read == set(whole) - {whole[1]}
        assert damages == ([(len(frames[0]), len(frames[0]) + kept)] if kept else [])


SPOILS = st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=300), st.booleans())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(SPOILS, min_size=1, max_size=4))
def test_whatever_is_written_over_or_between_records_costs_no_other_one(
    tmp_path: Path, spoils: list[tuple[int, bytes, bool]]
) -> None:
    frames = some_frames(4)
    data = b"".join(frames)
    for where, junk, insert in spoils:
        position = where % len(data)
        data = data[:position] + junk + data[position + (0 if insert else len(junk)) :]
    surviving = {payload for frame, payload in zip(frames, payloads(frames), strict=True) if frame in data}
    read, damages, _ = read_all(journals.dead(tmp_path, INCARNATION, data))
    assert surviving <= read
    spans = [span for pair in damages for span in pair]
    assert spans == sorted(spans)


def test_a_live_journal_waits_at_bytes_that_nothing_follows(tmp_path: Path) -> None:
    frames = some_frames(1)
    path = journals.dead(tmp_path, INCARNATION, b"".join(frames) + b"\xff" * 40)
    read, damages, tail = read_all(path, dead=False)
    assert (len(read), damages, tail.state) == (3, [], State.LIVE)


class ForgetfulDisk:
    """A sync that fails once and then says that all is well, as a kernel does with a lost page."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls == 1:
            raise OSError(errno.EIO, "lost")


def test_after_a_failed_sync_nothing_is_read_but_from_a_durable_copy(tmp_path: Path) -> None:
    frames = some_frames(2)
    path = journals.dead(tmp_path, INCARNATION, b"".join(frames))
    inode = path.stat().st_ino
    tail = JournalTail(path, sync=ForgetfulDisk())
    with pytest.raises(OSError, match="lost"):
        tail.read()
    assert tail.doubtful
    assert tail.read() == []
    assert tail.try_bury()
    assert [frame.payload for frame in tail.read()] == payloads(frames)
    assert not tail.doubtful
    assert path.stat().st_ino != inode
    assert path.read_bytes() == b"".join(frames)
    tail.close()


async def test_what_died_in_the_creation_of_a_journal_is_swept_away_after_a_minute(
    shop: Shop, tmp_path: Path
) -> None:
    draft, held = tmp_path / "inc_1.journal.new", tmp_path / "inc_2.journal.new"
    draft.touch()
    held.touch()
    creator = os.open(held, os.O_RDWR)
    fcntl.flock(creator, fcntl.LOCK_EX)
    clock = ManualClock()
    settler = Settler(shop.engine, folder=tmp_path, clock=clock)
    await settler.look()
    clock.advance(59)
    await settler.look()
    assert draft.exists()
    clock.advance(2)
    await settler.look()
    assert (draft.exists(), held.exists()) == (False, True)
    os.close(creator)
    settler.close()
