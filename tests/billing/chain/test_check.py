"""Whatever is done to a file of lines, the check finds it and says where."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.chain.check import MOST_KEPT, Scope
from billing.chain.lines import event_line
from billing.chain.link import BEGINNING, canonical, digest_of, genesis, hash_of
from billing.chain.walk import Flaw
from billing.metering.model import Outcome, Usage, UsageSource
from tests.billing.chain.makes import (
    TENANT,
    chain,
    checked,
    correction_of,
    event_row,
    flaws,
    head_of,
    seal,
    withheld,
)

DAYS = chain()
HEADS = Scope(heads=(head_of(DAYS[3]), head_of(DAYS[-1])))


def plain(text: bytes) -> dict[str, Any]:
    return dict(msgspec.json.decode(text))


def resealed(line: dict[str, Any]) -> bytes:
    """A line after a change, with a hash of its own that fits it."""
    place = line.pop("chain")
    digest = digest_of(line)
    hashed = hash_of(
        bytes.fromhex(place["previous"]), day=place["day"], sequence=place["sequence"], digest=digest
    )
    return canonical({**line, "chain": {**place, "hash": hashed.hex()}})


def test_a_chain_over_two_days_is_right() -> None:
    check = checked(DAYS, HEADS, USD=12 * 21_420_000)
    assert check.findings == []
    assert check.start == "begins with the tenant's first line"
    assert [plain(text)["chain"]["sequence"] for text in DAYS] == [1, 2, 3, 4, *range(1, 9)]
    assert check.sums.totals() == {"USD": 12 * 21_420_000}
    assert [key[0] for key in check.sums.by_group()] == ["2026-11-30", "2026-12-01"]


def test_a_line_is_bound_to_its_content_its_place_and_all_before_it_as_documented() -> None:
    first, second = plain(DAYS[0]), plain(DAYS[1])
    place = first.pop("chain")
    assert place["previous"] == genesis(TENANT, day=place["day"], before=BEGINNING).hex()
    sealed = {"day": place["day"], "line": digest_of(first).hex(), "sequence": 1}
    spelled = json.dumps(sealed, sort_keys=True, separators=(",", ":")).encode()
    assert canonical(sealed) == spelled
    digest = hash_of(bytes.fromhex(place["previous"]), day=place["day"], sequence=1, digest=digest_of(first))
    assert digest.hex() == place["hash"] == second["chain"]["previous"]


GOLDEN = "3ed016ec1b25e50c3c1bb707f3d32176ac11a3f25561c241c13a2eef7e1048e0"


def test_the_form_of_a_sealed_line_never_changes() -> None:
    assert digest_of(event_line(event_row(1))).hex() == GOLDEN


@given(st.data())
def test_any_change_of_a_byte_is_found_at_its_line(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(DAYS) - 1))
    text = DAYS[number]
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (text[at], 10)))
    spoiled = text[:at] + bytes([byte]) + text[at + 1 :]
    check = checked([*DAYS[:number], spoiled, *DAYS[number + 1 :]])
    assert any(finding.line == number + 1 for finding in check.findings)


@given(st.integers(0, len(DAYS) - 1))
def test_a_removed_line_is_found(number: int) -> None:
    assert flaws([*DAYS[:number], *DAYS[number + 1 :]], HEADS) & {Flaw.MISSING}


@given(st.permutations(DAYS).filter(lambda lines: list(lines) != DAYS))
def test_another_order_is_found(lines: list[bytes]) -> None:
    assert flaws(lines, HEADS) & {Flaw.OUT_OF_ORDER, Flaw.MISSING}


@given(st.integers(0, len(DAYS) - 1), st.integers(0, len(DAYS)))
def test_a_line_that_is_there_twice_is_found(number: int, at: int) -> None:
    assert Flaw.OUT_OF_ORDER in flaws([*DAYS[:at], DAYS[number], *DAYS[at:]])


@given(st.integers(0, len(DAYS) - 2), st.integers(1, 1000))
def test_a_changed_line_whose_hash_was_made_to_fit_is_found_at_the_next_one(number: int, more: int) -> None:
    line = plain(DAYS[number])
    line["usage"]["output"] += more
    line["billed"]["output"] += more
    line["cost_picos"] = str(int(line["cost_picos"]) + more * 2_160_000)
    texts = [*DAYS[:number], resealed(line), *DAYS[number + 1 :]]
    found = [finding for finding in checked(texts).findings if finding.flaw is not Flaw.ARITHMETIC]
    assert [(finding.line, finding.flaw) for finding in found] in (
        [(number + 2, Flaw.REPLACED)],
        [(number + 2, Flaw.MISSING)],  # the next day does not go on from it
    )


def test_a_chain_that_was_redone_from_some_line_on_is_found_by_a_kept_head() -> None:
    rows = [event_row(number, finish_reason="length") for number in range(12)]
    redone = seal((event_line(row), date(2026, 11, 30)) for row in rows)
    assert flaws(redone) == set()
    kept = Scope(heads=(head_of(seal((event_line(event_row(n)), date(2026, 11, 30)) for n in range(5))[-1]),))
    found = checked(redone, kept).findings
    assert [(each.line, each.flaw) for each in found] == [(5, Flaw.REPLACED)]


def test_lines_cut_from_the_end_are_found_by_a_kept_head_alone() -> None:
    assert flaws(DAYS[:-1]) == set()
    check = checked(DAYS[:-1], HEADS)
    assert [(each.line, each.flaw) for each in check.findings] == [(None, Flaw.MISSING)]
    assert "2026-12-01 has lines up to 8" in check.findings[0].what
    assert flaws(DAYS[:4], HEADS) == {Flaw.MISSING}
    assert flaws(DAYS[:4], Scope(heads=HEADS.heads, end_day="2026-12-01")) == set()


def test_a_whole_day_that_is_missing_is_found() -> None:
    days = chain(60, step=timedelta(hours=2))
    by_day: dict[str, list[bytes]] = {}
    for text in days:
        by_day.setdefault(plain(text)["chain"]["day"], []).append(text)
    first, *between, last = by_day
    assert flaws([text for day in (first, *between, last) for text in by_day[day]]) == set()
    for gone in between:
        left = [text for day in by_day if day != gone for text in by_day[day]]
        assert flaws(left) == {Flaw.MISSING}
    without_first = [text for day in (*between, last) for text in by_day[day]]
    assert flaws(without_first) == set()
    kept = (head_of(by_day[first][-1]),)
    assert checked(without_first, Scope(heads=kept)).start == f"goes on from the kept head of {first}"
    assert flaws(without_first, Scope(heads=kept, first_day=first)) == {Flaw.MISSING}


def test_lines_of_another_tenant_are_foreign() -> None:
    other = event_row(99, tenant_id="ten_" + "9" * 32)
    assert Flaw.FOREIGN in flaws([*DAYS, *seal([(event_line(other), date(2026, 12, 3))])])


def test_what_is_no_line_or_is_written_otherwise_is_not_taken() -> None:
    text = DAYS[0]
    twice = text.replace(b'"cost":', b'"cost":"0","cost":', 1)
    spaced = text.replace(b",", b", ", 1)
    for spoiled in (b"{}", b"[]", b"\xff", b"null", twice, spaced, text + b" ", b'{"object":"usage.event"}'):
        assert flaws([spoiled]) == {Flaw.UNREADABLE}


def test_a_filtered_download_is_checked_line_by_line() -> None:
    some = DAYS[1::3]
    assert Flaw.MISSING in flaws(some)
    assert flaws(some, Scope(partial=True)) == set()
    assert flaws(some[::-1], Scope(partial=True)) == {Flaw.OUT_OF_ORDER}
    assert flaws([some[0], some[0]], Scope(partial=True)) == {Flaw.OUT_OF_ORDER}


def test_withheld_lines_prove_the_chain_without_telling_what_they_are() -> None:
    texts = list(DAYS)
    for number in (0, 5, 6):
        texts[number] = withheld(DAYS[number])
        assert b"req_" not in texts[number]
    assert flaws(texts, HEADS) == set()
    assert flaws([*texts[:5], *texts[6:]], HEADS) == {Flaw.MISSING}


def test_pages_tell_how_much_they_had_and_whether_more_follows() -> None:
    def end(lines: int, following: str | None) -> bytes:
        return canonical({"object": "usage.page", "version": 1, "lines": lines, "next": following})

    pages = [*DAYS[:7], end(7, "x"), *DAYS[7:], end(5, None)]
    assert flaws(pages, HEADS) == set()
    assert flaws(pages[:8]) == {Flaw.UNFINISHED}
    assert Flaw.MISSING in flaws([*DAYS[:7], end(8, None)])


def test_sums_are_by_day_and_model_in_a_zone_and_net_of_corrections() -> None:
    row = event_row(1)
    at = datetime(2026, 12, 1, 9, tzinfo=UTC)
    texts = seal(
        [(event_line(row), date(2026, 11, 30)), (correction_of(row, tokens=2, at=at), date(2026, 12, 1))]
    )
    check = checked(texts, USD=21_420_000 - 2 * 2_160_000)
    assert check.findings == []
    amounts = {key[0]: (group.cost, group.corrected) for key, group in check.sums.by_group().items()}
    assert amounts == {"2026-11-30": (21_420_000, 0), "2026-12-01": (0, 4_320_000)}
    assert checked(texts, USD=1).flaws == {Flaw.TOTAL: 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": 21_420_001}, "billed tokens cost 0.00002142"),
        ({"billed_output": 6, "cost": 21_420_000 - 2_160_000}, "6 output are billed; by the policy"),
        ({"outcome": "engine_failed"}, "10 input are billed; by the policy (engine_failed"),
        ({"outcome": "forgotten"}, "the published policy doesn't know it"),
        ({"reasoning": 8}, "reasoning 8 is a part of output 7"),
        ({"usage_source": "unknown"}, "a bound stands exactly where nobody counted"),
    ],
)
def test_arithmetic_that_does_not_follow_is_found(change: dict[str, Any], words: str) -> None:
    texts = seal([(event_line(event_row(1) | change), date(2026, 11, 30))])
    check = checked(texts)
    assert {finding.flaw for finding in check.findings} == {Flaw.ARITHMETIC}
    assert any(words in finding.what for finding in check.findings)


def test_one_price_version_has_one_price_for_a_model() -> None:
    rates = {"input": 1, "input_cached": 1, "input_cache_write": 1, "output": 1}
    rows = [event_row(1), event_row(2), event_row(3, rates=rates, cost=22)]
    found = checked(seal((event_line(row), date(2026, 11, 30)) for row in rows)).findings
    assert [(finding.line, finding.flaw) for finding in found] == [(3, Flaw.PRICE)]
    other = event_row(3, rates=rates, cost=22, price_version_id="pbv_later")
    assert flaws(seal((event_line(row), date(2026, 11, 30)) for row in [*rows[:2], other])) == set()


def test_what_lies_above_a_bound_may_be_free() -> None:
    change = {"billed_output": 4, "cost": 21_420_000 - 3 * 2_160_000}
    above = event_row(1, flags=["output_above_bound"], **change)
    assert flaws(seal([(event_line(above), date(2026, 11, 30))])) == set()
    assert flaws(seal([(event_line(event_row(1, **change)), date(2026, 11, 30))])) == {Flaw.ARITHMETIC}


@given(
    st.sampled_from(Outcome),
    st.sampled_from(UsageSource),
    st.builds(Usage, *[st.integers(0, 10**9)] * 4),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_every_event_that_follows_the_policy_is_right_whatever_its_names(
    outcome: Outcome, source: UsageSource, usage: Usage, name: str
) -> None:
    row = event_row(1, usage, outcome=outcome, source=source, model_name=name, finish_reason=name)
    line = event_line(row)
    texts = seal([(line, date(2026, 11, 30))])
    assert flaws(texts) == set()
    assert b"\n" not in texts[0]
    assert (
        canonical(line)
        == json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )


def test_findings_beyond_a_bound_are_only_counted() -> None:
    check = checked([DAYS[1]] * (MOST_KEPT + 50))
    assert len(check.findings) == MOST_KEPT
    assert check.flaws == {Flaw.MISSING: 1, Flaw.OUT_OF_ORDER: MOST_KEPT + 49}
