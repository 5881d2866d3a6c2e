"""Law 1: a replay of a journal, in any order, any number of times, cut anywhere, changes nothing."""

from __future__ import annotations

import fcntl
import os
import random
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core import ids
from app.core.clock import ManualClock
from billing.journal import lock
from billing.journal.frames import Frame, pack, unpack
from billing.journal.join import Charge, Joiner
from billing.journal.model import Progress, Reading, Record, encode
from billing.journal.settler import Settler
from billing.journal.tail import JournalTail
from billing.metering.model import Outcome, Usage, UsageSource
from tests.billing.journal import journals
from tests.billing.journal.shop import NOW_MS, Catalogue, Shop, settled

SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())
BACKEND = ids.BackendId("bck_one")
COUNTS = st.integers(0, 900)


class Plan(NamedTuple):
    """What becomes of one request: read so far, and its end, if it has one."""

    read: int | None
    end: Outcome | None
    usage: Usage


PLANS = st.builds(
    Plan,
    st.none() | COUNTS,
    st.none() | st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.LOST]),
    st.builds(Usage, input=COUNTS, input_cached=COUNTS, input_cache_write=COUNTS, output=COUNTS),
)


class Replay(NamedTuple):
    """One reading of the journal by a live-looking file: how it is mangled."""

    seed: int
    shuffled: bool
    doubled: bool
    cut: float


REPLAYS = st.builds(Replay, st.integers(0, 2**32), st.booleans(), st.booleans(), st.floats(0, 1))


def history(catalogue: Catalogue, plans: list[Plan]) -> tuple[list[Record], dict[str, tuple[str, int]]]:
    """The records of the plans, and (outcome, cost) of each request that must come of them."""
    started = [catalogue.admitted(at_ms=NOW_MS + number) for number in range(len(plans))]
    records: list[Record] = list(started)
    expected: dict[str, tuple[str, int]] = {}
    for admitted, plan in zip(started, plans, strict=True):
        if plan.read is not None:
            reading = Reading(admitted.request_id, BACKEND, Usage(plan.read), plan.read)
            records.append(Progress(NOW_MS + 2000, (reading,)))
        if plan.end is None:
            expected[admitted.request_id] = ("lost", 0)
            continue
        end = settled(admitted, plan.usage, outcome=plan.end, source=UsageSource.ENGINE)
        records.append(end)
        expected[admitted.request_id] = (plan.end.value, end.cost_picos)
    return records, expected


def mangled(records: list[Record], replay: Replay) -> bytes:
    """The frames of the records, some twice, in another order, the last one torn.

    Progress rows come last: what they tell is of requests that were admitted before.
    """
    draw = random.Random(replay.seed)
    frames = [pack(encode(record)) for record in records if not isinstance(record, Progress)]
    readings = [pack(encode(record)) for record in records if isinstance(record, Progress)]
    if replay.doubled:
        frames += draw.choices(frames, k=len(frames) // 2 + 1) if frames else []
    if replay.shuffled:
        draw.shuffle(frames)
        draw.shuffle(readings)
    data = b"".join(frames + readings)
    return data[: round(replay.cut * len(data))]


def joined(data: bytes, incarnation_id: ids.IncarnationId) -> tuple[set[bytes], set[bytes]]:
    """Hashes of what is settled in the frames, and of what a death after them would lose."""
    joiner = Joiner(incarnation_id)
    frames, _ = unpack(data, offset=0)
    done = {entry.payload_hash for frame in frames if isinstance(entry := joiner.take(frame), Charge)}
    settled_ids = {entry[:32] for entry in done}
    left = {charge.payload_hash for charge in joiner.lost(10**9)}
    return done, {entry for entry in left if entry[:32] not in settled_ids}


@given(st.lists(PLANS, max_size=8), REPLAYS)
def test_the_order_and_the_number_of_records_do_not_change_what_they_say(
    plans: list[Plan], replay: Replay
) -> None:
    records, _ = history(SOMEONE, plans)
    incarnation_id = ids.incarnation_id()
    straight = b"".join(pack(encode(record)) for record in records)
    whole = mangled(records, replay._replace(cut=1.0))
    assert joined(whole, incarnation_id) == joined(straight, incarnation_id)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(PLANS, min_size=1, max_size=8), st.lists(REPLAYS, max_size=3), st.integers(1, 4))
async def test_any_replay_posts_the_same_events_and_the_same_ledger(
    shop: Shop, tmp_path: Path, plans: list[Plan], replays: list[Replay], batch: int
) -> None:
    incarnation_id = await shop.incarnation()
    records, expected = history(shop.catalogue, plans)
    head = pack(encode(journals.opened(incarnation_id)))
    for replay in replays:
        path = journals.dead(tmp_path, incarnation_id, head + mangled(records, replay))
        with path.open("rb") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            settler = Settler(shop.engine, folder=tmp_path, clock=shop.clock, batch=batch)
            await settler.look()
            assert await settler.look() == 0
            settler.close()
        async with shop.owner.begin() as connection:
            await connection.exec_driver_sql("DELETE FROM journal_position")
    final = b"".join(pack(encode(record)) for record in records)
    journals.dead(tmp_path, incarnation_id, head + final)
    await Settler(shop.engine, folder=tmp_path, clock=shop.clock, batch=batch).look()
    assert await shop.events(incarnation_id) == expected
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
    assert await shop.rows("SELECT count(*) FROM parked_record") == [0]
    assert await shop.outstanding(incarnation_id) == 0
    await shop.assert_the_books_agree()


def test_a_journal_that_grows_byte_by_byte_gives_each_record_when_it_is_whole(tmp_path: Path) -> None:
    incarnation_id = ids.incarnation_id()
    admitted = SOMEONE.admitted()
    frames = journals.frames(incarnation_id, [admitted, settled(admitted)])
    path = journals.dead(tmp_path, incarnation_id, b"")
    tail = JournalTail(path)
    found: list[Frame] = []
    for written, byte in enumerate(b"".join(frames), start=1):
        journals.append(path, bytes([byte]))
        found += tail.read()
        whole = [end for end in _ends(frames) if end <= written]
        assert [frame.end for frame in found] == whole
    assert b"".join(pack(frame.payload) for frame in found) == path.read_bytes()
    tail.close()


def _ends(frames: list[bytes]) -> list[int]:
    return [sum(map(len, frames[: number + 1])) for number in range(len(frames))]


def test_a_dead_journal_torn_at_any_byte_gives_its_whole_records(tmp_path: Path) -> None:
    incarnation_id = ids.incarnation_id()
    admitted = SOMEONE.admitted()
    frames = journals.frames(incarnation_id, [admitted, settled(admitted)])
    data = b"".join(frames)
    for cut in range(len(frames[0]), len(data)):
        tail = JournalTail(journals.dead(tmp_path, incarnation_id, data[:cut]))
        assert tail.try_bury()
        found = tail.read() + tail.read()
        assert [frame.end for frame in found] == [end for end in _ends(frames) if end <= cut]
        assert tail.stopped_because == ""
        tail.close()


async def test_a_lost_request_is_lost_in_the_same_words_whoever_settles_it(
    shop: Shop, tmp_path: Path
) -> None:
    """Two settlers, one after the other, both find the journal of a dead process unposted."""
    incarnation_id = await shop.incarnation()
    data = b"".join(journals.frames(incarnation_id, [shop.catalogue.admitted()]))
    for hours in (0, 5):
        journals.dead(tmp_path, incarnation_id, data)
        clock = ManualClock(NOW_MS + hours * 3_600_000)
        await Settler(shop.engine, folder=tmp_path, clock=clock).look()
        os.unlink(tmp_path / "closed" / lock.path_of(tmp_path, incarnation_id).name)
    assert await shop.rows("SELECT count(*) FROM usage_event") == [1]
    assert await shop.rows("SELECT count(*) FROM usage_conflict") == [0]
