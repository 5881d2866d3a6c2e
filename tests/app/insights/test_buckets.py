"""Ranges are cut without gap or overlap, days at local midnight, also when the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.insights.buckets import Width, ceiling, edges, is_whole

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Shanghai",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Pacific/Apia",
)
_YEARS = (datetime(2011, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))
_moments = st.timedeltas(timedelta(), _YEARS[1] - _YEARS[0]).map(lambda since: _YEARS[0] + since)
_zones = st.sampled_from(ZONES).map(ZoneInfo)
_lengths = st.timedeltas(timedelta(microseconds=1), timedelta(days=5))


@given(_moments, _lengths, st.sampled_from(Width), _zones)
def test_buckets_cover_the_range_without_gap_or_overlap(
    start: datetime, length: timedelta, width: Width, zone: ZoneInfo
) -> None:
    cut = edges(start, start + length, width=width, zone=zone)
    assert (cut[0], cut[-1]) == (start, start + length)
    assert all(before < after for before, after in pairwise(cut))


@given(_moments, _lengths, _zones)
def test_days_are_cut_at_local_midnight(start: datetime, length: timedelta, zone: ZoneInfo) -> None:
    inner = edges(start, start + length, width=Width.DAY, zone=zone)[1:-1]
    for edge in inner:
        just_before, at = ((edge - timedelta(microseconds=1)).astimezone(zone), edge.astimezone(zone))
        assert just_before.date() < at.date()


@given(_moments, _zones)
def test_hours_are_an_hour_long(start: datetime, zone: ZoneInfo) -> None:
    cut = edges(start, start + timedelta(hours=5), width=Width.HOUR, zone=zone)
    assert all(after - before == timedelta(hours=1) for before, after in list(pairwise(cut))[1:-1])


@given(_moments, st.sampled_from([width for width in Width if width is not Width.NONE]), _zones)
def test_the_ceiling_is_the_first_edge_at_or_after_a_moment(
    moment: datetime, width: Width, zone: ZoneInfo
) -> None:
    top = ceiling(moment, width=width, zone=zone)
    assert moment <= top <= moment + timedelta(days=2)
    assert ceiling(top, width=width, zone=zone) == top


def test_the_day_on_which_the_clocks_go_back_has_25_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = datetime(2026, 10, 24, 22, tzinfo=UTC)
    days = edges(start, start + timedelta(days=2), width=Width.DAY, zone=berlin)
    hours = edges(start, days[1], width=Width.HOUR, zone=berlin)
    assert days[1] - days[0] == timedelta(hours=25)
    assert len(hours) - 1 == 25


@pytest.mark.parametrize(("start_day", "end_day"), [(2, 2), (2, 1)])
def test_an_empty_range_is_refused(start_day: int, end_day: int) -> None:
    start, end = (datetime(2026, 1, day, tzinfo=UTC) for day in (start_day, end_day))
    with pytest.raises(ValueError, match="after it starts"):
        edges(start, end, width=Width.DAY, zone=ZoneInfo("UTC"))


def test_too_many_buckets_are_refused() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="more than 10000 buckets"):
        edges(start, start + timedelta(days=30), width=Width.MINUTE, zone=ZoneInfo("UTC"))


def test_roll_ups_serve_whole_quarters_only() -> None:
    quarter = datetime(2026, 1, 1, 0, 15, tzinfo=UTC)
    assert is_whole([quarter, quarter + timedelta(minutes=15)])
    assert not is_whole([quarter, quarter + timedelta(minutes=16)])
    assert not is_whole([quarter, quarter + timedelta(minutes=15, microseconds=1)])
