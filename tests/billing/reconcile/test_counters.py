"""What an engine did is known from its counters, through restarts, and what a restart hid is a hole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from billing.reconcile.counters import is_restart, stretch
from billing.reconcile.model import Counters, EngineMeter, Reading

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def minute(number: int) -> datetime:
    return NOON + timedelta(minutes=number)


def readings(*counters: Counters) -> list[Reading]:
    return [Reading(minute(number), each) for number, each in enumerate(counters)]


def counted(*generated: int | None, process: tuple[str | None, ...] = ()) -> list[Reading]:
    known = process or (None,) * len(generated)
    return readings(*(Counters(name, generated=value) for value, name in zip(generated, known, strict=True)))


def test_growth_is_summed_from_the_first_reading_on() -> None:
    found = stretch(counted(100, 130, 130, 190), EngineMeter.GENERATED)
    assert found is not None
    assert (found.counted, found.holes, found.readings) == (90, (), 4)
    assert (found.begins_at, found.ends_at) == (minute(0), minute(3))


def test_what_an_engine_claims_over_many_restarts_stays_what_can_be_kept() -> None:
    claims = [(1 << 53) - 1 - number % 2 for number in range(1440)]
    found = stretch(counted(*claims, process=tuple(map(str, range(1440)))), EngineMeter.GENERATED)
    assert found is not None
    assert found.counted == (1 << 63) - 1


def test_a_counter_that_fell_began_anew_and_leaves_a_hole() -> None:
    found = stretch(counted(100, 130, 20, 50), EngineMeter.GENERATED)
    assert found is not None
    assert (found.counted, found.holes) == (80, ((minute(1), minute(2)),))


def test_a_new_process_is_a_restart_although_its_counter_is_higher_by_now() -> None:
    found = stretch(counted(100, 300, process=("a", "b")), EngineMeter.GENERATED)
    assert found is not None
    assert (found.counted, found.holes) == (300, ((minute(0), minute(1)),))


def test_another_counter_that_fell_betrays_the_restart_of_this_one() -> None:
    before, after = Counters(prompt=50, generated=100), Counters(prompt=10, generated=120)
    assert is_restart(before, after)
    found = stretch(readings(before, after), EngineMeter.GENERATED)
    assert found is not None
    assert found.counted == 120


def test_a_reading_that_does_not_say_is_passed_over() -> None:
    found = stretch(counted(100, None, 160), EngineMeter.GENERATED)
    assert found is not None
    assert (found.counted, found.readings, found.holes) == (60, 2, ())


def test_fewer_than_two_readings_say_nothing() -> None:
    assert stretch([], EngineMeter.GENERATED) is None
    assert stretch(counted(100), EngineMeter.GENERATED) is None
    assert stretch(counted(None, None), EngineMeter.GENERATED) is None
    assert stretch(counted(1, 2), EngineMeter.PROMPT) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=2, max_size=40))
def test_what_is_known_is_never_more_than_what_was_done_and_all_of_it_without_restart(
    steps: list[tuple[int, bool]],
) -> None:
    """Each step the engine does some work, is restarted or not before it, and is then read."""
    seen, total, process, work = [], 0, 0, 0
    for done, restarts in steps:
        if restarts:
            process, total = process + 1, 0
        total += done
        seen.append(Counters(str(process), generated=total))
    for done, _ in steps[1:]:
        work += done
    found = stretch(readings(*seen), EngineMeter.GENERATED)
    assert found is not None
    restarts_seen = sum(restarts for _, restarts in steps[1:])
    assert len(found.holes) == restarts_seen
    assert found.counted == work


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=30), st.data())
def test_days_tile_so_that_their_sums_are_the_whole(growth: list[int], data: st.DataObject) -> None:
    total, values = 0, []
    for each in growth:
        total += each
        values.append(total)
    cut = data.draw(st.integers(1, len(values) - 2))
    seen = counted(*values)
    whole, first, second = (
        stretch(part, EngineMeter.GENERATED) for part in (seen, seen[: cut + 1], seen[cut:])
    )
    assert whole is not None
    assert first is not None
    assert second is not None
    assert first.counted + second.counted == whole.counted
