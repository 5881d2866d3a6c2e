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
from app.core.money import PICOS_PER_UNIT
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


async def test_a_corrupt_frame_costs_no_other_record_and_keeps_its_incarnation_open(
    shop: Shop, tmp_path: Path
) -> None:
    broken, sound = await shop.incarnation(lent=PICOS_PER_UNIT), await shop.incarnation()
    charges = [shop.catalogue.admitted() for _ in range(4)]
    frames = journals.frames(broken, [r for a in charges[:3] for r in (a, settled(a))])
    spoiled = bytearray(frames[4])
    spoiled[20] ^= 1
    data = b"".join([*frames[:4], spoiled, *frames[5:]])
    path = journals.dead(tmp_path, broken, data)
    other = journals.frames(sound, [charges[3], settled(charges[3])])
    journals.dead(tmp_path, sound, b"".join(other))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 4
    assert await settler.look() == 0
    offset = sum(map(len, frames[:4]))
    assert (tmp_path / "quarantine" / f"{broken}.{offset}").read_bytes() == bytes(spoiled)
    assert (tmp_path / "quarantine" / path.name).read_bytes() == data
    ends = {charge.request_id: "completed" for charge in charges[:3]} | {charges[1].request_id: "lost"}
    events = await shop.events(broken)
    assert {request: outcome for request, (outcome, _) in events.items()} == ends
    spent = sum(price for _, price in events.values())
    assert await shop.outstanding(broken) == PICOS_PER_UNIT - spent
    assert await shop.outstanding(sound) == 0
    assert await shop.rows("SELECT incarnation_id, file_offset, byte_count FROM journal_damage") == [
        (broken, offset, len(spoiled))
    ]
    assert b"steelyard_settler_damages_open 1.0" in settler.metrics.render()
    await shop.assert_the_books_agree()


async def test_a_dead_journal_with_a_hole_larger_than_one_read_is_not_given_up(
    shop: Shop, tmp_path: Path
) -> None:
    incarnation_id = await shop.incarnation()
    admitted = [shop.catalogue.admitted() for _ in range(2)]
    frames = journals.frames(incarnation_id, [r for a in admitted for r in (a, settled(a))])
    path = journals.dead(tmp_path, incarnation_id, b"".join(frames[:3]))
    os.truncate(path, 40 * 1024 * 1024)
    journals.append(path, b"".join(frames[3:]))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert await settler.look() == 2
    hole = 40 * 1024 * 1024 - sum(map(len, frames[:3]))
    assert await shop.rows("SELECT byte_count FROM journal_damage") == [hole]
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]


async def test_a_live_journal_is_called_corrupt_only_when_it_stays_so(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    admitted = shop.catalogue.admitted()
    writer = await journals.live(tmp_path, incarnation_id, admitted, clock=shop.clock)
    size = writer.path.stat().st_size
    last = journals.frames(incarnation_id, [settled(admitted)])[1]
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    journals.append(writer.path, last[:20] + bytes(len(last) - 20))
    assert await settler.look() == 0
    with writer.path.open("r+b") as file:
        file.truncate(size)
    journals.append(writer.path, last)
    assert await settler.look() == 1
    assert await shop.rows("SELECT count(*) FROM journal_damage") == [0]
    settler.close()
    await writer.close()


async def test_a_live_journal_is_read_on_behind_a_damage_that_stays(shop: Shop, tmp_path: Path) -> None:
    incarnation_id = await shop.incarnation()
    first, second, third = (shop.catalogue.admitted() for _ in range(3))
    writer = await journals.live(tmp_path, incarnation_id, first, settled(first), clock=shop.clock)
    journals.append(writer.path, b"no writer wrote this")
    await journals.add(writer, second, settled(second))
    settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock)
    assert [await settler.look() for _ in range(3)] == [1, 0, 1]
    await journals.add(writer, third, settled(third))
    assert await settler.look() == 1
    assert [path.read_bytes() for path in (tmp_path / "quarantine").iterdir()] == [b"no writer wrote this"]
    await writer.close()
    await settler.look()
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["open"]
    settler.close()


@pytest.mark.parametrize("size", [0, 40 * 1024 * 1024])
async def test_a_power_cut_that_kept_only_the_first_pages_of_a_record_needs_nobody(
    shop: Shop, tmp_path: Path, size: int
) -> None:
    incarnation_id = await shop.incarnation()
    first, second = (shop.catalogue.admitted() for _ in range(2))
    records = [first, settled(first), second, settled(second, attempts=({"error": "x" * 9_000},))]
    frames = journals.frames(incarnation_id, records)
    data = b"".join(frames)
    cut = (len(data) - 5_000) // 4096 * 4096
    path = journals.dead(tmp_path, incarnation_id, data[:cut] + bytes(len(data) - cut))
    os.truncate(path, max(size, len(data)))
    assert await Settler(shop.engine, folder=tmp_path, clock=shop.clock).look() == 2
    outcomes = {request: outcome for request, (outcome, _) in (await shop.events(incarnation_id)).items()}
    assert outcomes == {first.request_id: "completed", second.request_id: "lost"}
    assert await shop.outstanding(incarnation_id) == 0
    assert await shop.rows("SELECT count(*) FROM journal_damage") == [0]
    assert await shop.rows("SELECT status FROM incarnation WHERE id = :id", id=incarnation_id) == ["closed"]
