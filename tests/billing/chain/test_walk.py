"""What a kept head fixes: nothing up to it can be cut, skipped, redone or begun anew unseen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.chain.check import Scope
from billing.chain.lines import event_line, published
from billing.chain.link import Head, digest_of, extend
from billing.chain.walk import Flaw
from billing.chain.wire import KeptHead
from tests.billing.chain.makes import TENANT, chain, checked, event_row, flaws, head_of, seal

FIRST = date(2026, 11, 30)


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def lines(count: int, *, on: date, start: int = 0, **facts: Any) -> list[tuple[dict[str, Any], date]]:
    """Lines to seal, with numbers from `start`."""
    return [(event_line(event_row(start + number, **facts)), on) for number in range(count)]


def seal_after(head: Head | None, more: Iterable[tuple[dict[str, Any], date]]) -> list[bytes]:
    """Lines sealed as what follows a given head."""
    texts = []
    for line, on in more:
        link = extend(head, tenant_id=TENANT, posted=on, today=on, digest=digest_of(line))
        head = Head(link.day, link.sequence, link.hash)
        texts.append(published(line, link))
    return texts


def place_of(text: bytes) -> tuple[str, int]:
    place = msgspec.json.decode(text)["chain"]
    return place["day"], place["sequence"]


def last_of(text: bytes) -> Head:
    place = msgspec.json.decode(text)["chain"]
    return Head(place["day"], place["sequence"], bytes.fromhex(place["hash"]))


TRUE = seal([*lines(4, on=day(0)), *lines(3, on=day(1), start=4), *lines(5, on=day(2), start=7)])
KEPT = Scope(heads=(head_of(TRUE[3]),))


def test_a_day_cut_before_its_kept_head_is_found_though_the_next_day_goes_on_from_the_cut() -> None:
    redone = seal([*lines(3, on=day(0)), *lines(3, on=day(1), start=4)])
    assert flaws(redone) == set()
    (found,) = checked(redone, KEPT).findings
    assert (found.line, found.flaw) == (None, Flaw.MISSING)
    assert "2026-11-30 has lines up to 4 by the kept head, and line 4 is not here" in found.what


def test_a_day_with_a_kept_head_that_was_skipped_is_found() -> None:
    redone = seal([*lines(4, on=day(0)), *lines(5, on=day(2), start=7)])
    assert flaws(redone) == set()
    scope = Scope(heads=(head_of(TRUE[3]), head_of(TRUE[6])))
    (found,) = checked(redone, scope).findings
    assert (found.flaw, "2026-12-01 has lines up to 3" in found.what) == (Flaw.MISSING, True)


def test_a_head_within_the_file_counts_also_after_the_days_that_were_asked_for() -> None:
    redone = seal([*lines(3, on=day(0)), *lines(3, on=day(1), start=4)])
    assert flaws(redone, Scope(heads=KEPT.heads, end_day="2026-11-30")) == {Flaw.MISSING}


def test_a_head_that_was_kept_more_than_once_is_told_once() -> None:
    scope = Scope(heads=(*KEPT.heads, msgspec.structs.replace(KEPT.heads[0], open=False), *KEPT.heads))
    assert checked(TRUE, scope).findings == []
    assert len(checked(TRUE[:2], scope).findings) == 1


def test_a_line_that_joined_a_day_after_its_end_was_kept_is_found() -> None:
    grown = seal([*lines(4, on=day(0)), *lines(2, on=day(0), start=7), *lines(3, on=day(1), start=4)])
    assert flaws(grown, KEPT) == set()
    ended = msgspec.structs.replace(KEPT.heads[0], open=False)
    (found,) = checked(grown, Scope(heads=(ended,))).findings
    assert (found.line, found.flaw) == (5, Flaw.REPLACED)
    assert "2026-11-30 had ended with line 4" in found.what


def test_how_far_heads_fix_a_file_is_told() -> None:
    assert "first line" in str(checked(TRUE[4:], KEPT).loose_from)
    assert "line 4 of 2026-11-30" in str(checked(TRUE[:4], KEPT).loose_from)
    ended = Scope(heads=(msgspec.structs.replace(KEPT.heads[0], open=False),))
    assert checked(TRUE[:4], ended).loose_from is None
    assert "line 4 of 2026-11-30" in str(checked(TRUE, ended).loose_from)


def test_a_chain_that_begins_anew_after_a_kept_head_is_found() -> None:
    anew = seal(lines(3, on=day(1), start=4))
    assert flaws(anew) == set()
    for partial in (False, True):
        (found,) = checked(anew, Scope(heads=KEPT.heads, partial=partial)).findings
        assert (found.line, found.flaw) == (1, Flaw.REPLACED)
        assert "as if the tenant had no line before" in found.what


def test_a_second_beginning_is_found_in_a_filtered_download_too() -> None:
    anew = [*TRUE[:2], *seal(lines(3, on=day(1), start=4))]
    assert [(each.line, each.flaw) for each in checked(anew, Scope(partial=True)).findings] == [
        (3, Flaw.REPLACED)
    ]


def test_a_day_that_goes_on_from_something_else_than_the_ended_day_before_is_found() -> None:
    forged = seal_after(Head("2026-11-30", 4, b"\7" * 32), lines(3, on=day(1), start=4))
    kept = head_of(TRUE[3])
    ended = msgspec.structs.replace(kept, open=False)
    assert flaws(forged, Scope(heads=(kept,))) == set()
    assert "can't tell" in checked(forged, Scope(heads=(kept,))).start
    assert flaws(forged, Scope(heads=(ended,))) == {Flaw.REPLACED}
    anew = seal(lines(3, on=day(1), start=4))
    assert len(checked(anew, Scope(heads=(kept, ended))).findings) == 1
    assert flaws(TRUE[4:], Scope(heads=(ended,))) == set()
    assert flaws(TRUE[7:], Scope(heads=(ended,))) == set()


def test_a_kept_head_of_another_tenant_is_foreign() -> None:
    other = msgspec.structs.replace(KEPT.heads[0], tenant_id="ten_" + "9" * 32)
    assert flaws(TRUE, Scope(heads=(other,))) == {Flaw.FOREIGN}


def test_a_filtered_download_need_not_have_the_line_of_a_head() -> None:
    assert flaws([*TRUE[:2], *TRUE[5:]], Scope(heads=KEPT.heads, partial=True)) == set()


@st.composite
def forgeries(draw: st.DrawFn) -> tuple[Sequence[bytes], KeptHead]:
    """A chain of which all lines from some place on, or up to some place, are others or gone."""
    kept = draw(st.integers(0, len(TRUE) - 1))
    cut = draw(st.integers(0, kept))
    left = draw(st.integers(0, len(TRUE) - cut))
    days = sorted(draw(st.integers(0, 4)) for _ in range(left))
    head = last_of(TRUE[cut - 1]) if cut else None
    other = [line for n in days for line in lines(1, on=day(n), start=draw(st.integers(100, 200)))]
    return [*TRUE[:cut], *seal_after(head, other)], head_of(TRUE[kept])


@given(forgeries())
def test_whatever_was_redone_at_or_before_a_kept_head_is_found(
    forged: tuple[Sequence[bytes], KeptHead],
) -> None:
    texts, head = forged
    assert flaws(texts, Scope(heads=(head,))) & {Flaw.MISSING, Flaw.REPLACED}


@given(st.integers(0, len(TRUE) - 1), st.integers(0, 4), st.integers(1, 12))
def test_a_whole_chain_made_anew_is_found_wherever_it_begins(kept: int, first: int, count: int) -> None:
    """With the days that must be there, or without them if it begins no later than a kept head's day."""
    head = head_of(TRUE[kept])
    anew = seal(lines(count, on=day(first), start=300))
    assert flaws(anew, Scope(heads=(head,), first_day="2026-11-30")) & {Flaw.MISSING, Flaw.REPLACED}
    assert flaws(anew, Scope(heads=(head,))) & {Flaw.MISSING, Flaw.REPLACED}


@given(st.sets(st.integers(0, len(TRUE) - 1)))
def test_true_lines_are_right_whichever_heads_were_kept(kept: set[int]) -> None:
    heads = tuple(head_of(TRUE[number]) for number in kept)
    assert flaws(TRUE, Scope(heads=heads)) == set()
    assert flaws(TRUE[4:], Scope(heads=heads)) == set()
    assert flaws(chain()[:4], Scope(heads=(head_of(chain()[3]),))) == set()
