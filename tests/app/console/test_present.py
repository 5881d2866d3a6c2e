"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.console import present
from app.console.nav import reachable
from app.core.ids import MemberId
from app.identity.model import Actor, Scope


def test_an_amount_is_exact_and_unknown_is_a_dash() -> None:
    assert present.amount(40_000_000, "USD") == "0.00004 USD"
    assert present.amount(0, "USD") == "0 USD"
    assert present.amount(None, "USD") == "–"


def test_counts_are_grouped() -> None:
    assert present.count(1_234_567) == "1\u202f234\u202f567"
    assert present.count(0) == "0"
    assert present.count(None) == "–"


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(None, "–"), (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (12_599, "12.5 s")]
)
def test_durations_have_a_unit(milliseconds: int | None, text: str) -> None:
    assert present.duration(milliseconds) == text


def test_a_moment_is_shown_in_the_zone_of_its_reader() -> None:
    at = datetime(2026, 11, 30, 16, 30, tzinfo=UTC)
    assert present.moment(at, "Asia/Shanghai") == "2026-12-01 00:30:00"
    assert present.moment("2026-11-30T16:30:00Z", "UTC") == "2026-11-30 16:30:00"
    assert present.moment(None, "UTC") == "–"


def test_the_navigation_leaves_out_what_a_role_cannot_use() -> None:
    actor = Actor(id=MemberId("mem_1"), name="a", tenant_id=None, scopes=frozenset({Scope.SELF_READ}))
    assert [destination.label for destination in reachable(actor)] == ["Home"]
