"""A correction is held against its event, and against what the ledger allows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.chain.check import Scope
from billing.chain.lines import correction_line, event_line
from billing.chain.ties import Tie, Ties
from billing.chain.walk import Flaw
from billing.chain.wire import Correction, Event, read_line
from tests.billing.chain.makes import RATES, checked, event_row, seal, withheld

DAY = date(2026, 11, 30)
AT = datetime(2026, 12, 1, 9, tzinfo=UTC)
COST = 21_420_000
METERS = ("input", "input_cached", "input_cache_write", "output")


def correction(row: dict[str, Any], *, number: int = 1, amount: int = 0, **tokens: int) -> dict[str, Any]:
    """A correction by tokens, or by an amount."""
    change = {name: tokens.get(name, 0) for name in METERS}
    worth = -sum(count * getattr(RATES, name) for name, count in change.items())
    own = {"id": f"crr_{number:032x}", "at": AT, "reason": "because", "amount": amount or worth}
    return correction_line(own | {f"billed_{name}": count for name, count in change.items()}, row)


def sealed(*lines: dict[str, Any]) -> list[bytes]:
    return seal((line, DAY) for line in lines)


def found(texts: list[bytes], **scope: Any) -> list[tuple[int | None, Flaw, str]]:
    return [(each.line, each.flaw, each.what) for each in checked(texts, Scope(**scope)).findings]


ROW = event_row(1)
EVENT = event_line(ROW)


@pytest.mark.parametrize(
    "corrections",
    [
        [correction(ROW, amount=COST)],
        [correction(ROW, amount=1), correction(ROW, amount=COST - 1, number=2)],
        [correction(ROW, output=-7)],
        [correction(ROW, output=1000)],
        [correction(ROW, output=3), correction(ROW, output=-10, number=2)],
        [correction(ROW, amount=5), correction(ROW, amount=-5, number=2)],
        [correction(ROW, amount=-5), correction(ROW, amount=5, number=2)],
    ],
)
def test_what_the_ledger_allows_is_right_wherever_the_event_stands(corrections: list[dict[str, Any]]) -> None:
    assert found(sealed(EVENT, *corrections)) == []
    assert found(sealed(*corrections, EVENT)) == []


@pytest.mark.parametrize(
    ("corrections", "line", "words"),
    [
        ([correction(ROW, amount=COST + 1)], 2, "less than nothing"),
        ([correction(ROW, amount=COST), correction(ROW, amount=1, number=2)], 3, "less than nothing"),
        ([correction(ROW, amount=-1)], 2, "costs 0.000000000001 more than its billed tokens"),
        ([correction(ROW, amount=5), correction(ROW, amount=-6, number=2)], 3, "more than its billed tokens"),
        ([correction(ROW, output=-8, input=30)], 2, "has -1 billed output tokens"),
        ([correction(ROW, amount=9), correction(ROW, output=-7, input=-10, number=2)], 2, ""),
    ],
)
def test_what_the_ledger_does_not_allow_is_found(
    corrections: list[dict[str, Any]], line: int, words: str
) -> None:
    texts = sealed(EVENT, *corrections)
    if words:
        ((number, flaw, what),) = found(texts)
        assert (number, flaw) == (line, Flaw.CORRECTION)
        assert words in what
        assert checked(texts).findings[0].id == corrections[line - 2]["correction_id"]
    else:
        assert found(texts) == []
    assert found(texts, partial=True) == []


def test_a_correction_of_nothing_is_none() -> None:
    assert [flaw for _, flaw, _ in found(sealed(EVENT, correction(ROW)))] == [Flaw.ARITHMETIC]


@pytest.mark.parametrize(
    "change",
    [
        {"project_id": "prj_9"},
        {"key_id": "key_9"},
        {"model_id": "mdl_9"},
        {"model_name": "large"},
        {"price_version_id": "pbv_9"},
        {"currency": "EUR"},
        {
            "rates": {**{name: getattr(RATES, name) for name in METERS}, "input": 1},
            "price_version_id": "pbv_9",
        },
    ],
)
def test_a_correction_that_tells_of_another_event_is_found(change: dict[str, Any]) -> None:
    texts = sealed(EVENT, correction(ROW | change, amount=1))
    for partial in (False, True):
        ((number, flaw, what),) = found(texts, partial=partial)
        assert (number, flaw) == (2, Flaw.CORRECTION)
        assert what.endswith("are not those of line 1, which it corrects")


def test_a_correction_of_no_request_is_found_in_a_file_that_has_all() -> None:
    texts = sealed(EVENT, correction(event_row(2), amount=1))
    assert [(number, flaw) for number, flaw, _ in found(texts)] == [(2, Flaw.CORRECTION)]


def test_a_correction_whose_event_may_be_elsewhere_is_said_to_be_so() -> None:
    other = event_row(2)
    texts = seal([(EVENT, DAY), (correction(other, amount=1), date(2026, 12, 1))])
    for lines, scope in ((texts[1:], Scope()), (texts, Scope(partial=True))):
        check = checked(lines, scope)
        assert (check.findings, check.untied) == ([], 1)
    check = checked([withheld(texts[0]), texts[1]])
    assert (check.findings, check.untied) == ([], 1)


def test_a_line_that_is_wrong_itself_does_not_make_its_correction_wrong() -> None:
    texts = sealed(EVENT, correction(ROW, amount=1))
    check = checked([texts[0].replace(b'"cost":', b'"cose":'), texts[1]])
    assert (check.untied, Flaw.CORRECTION in check.flaws) == (1, False)


def test_an_event_that_was_sealed_twice_allows_no_more() -> None:
    texts = sealed(EVENT, EVENT, correction(ROW, amount=COST + 1))
    assert [flaw for _, flaw, _ in found(texts)] == [Flaw.CORRECTION]


@given(st.permutations(range(60)), st.integers(1, 70))
def test_what_is_found_is_the_same_however_much_fits_in_memory(order: list[int], chunk: int) -> None:
    rows = [event_row(number) for number in range(30)]
    lines = [event_line(row) for row in rows]
    lines += [correction(row, number=n, amount=COST + n % 2) for n, row in enumerate(rows)]
    ties = Ties(partial=False, chunk=chunk)
    for number in order:
        line, _ = read_line(sealed(lines[number])[0])
        assert isinstance(line, Event | Correction)
        ties.add(line, number=number)
    told = sorted(ties.found())
    assert [tie.line for tie in told] == list(range(31, 60, 2))
    assert told[0] == Tie(31, lines[31]["correction_id"], told[0].what)
