"""A line that isn't written as lines are is a finding at its number, never a failure of the program."""

from __future__ import annotations

import re
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.chain.check import Check, Scope
from billing.chain.link import canonical, digest_of, hash_of
from billing.chain.walk import Flaw
from billing.chain.wire import Unreadable, read_heads
from tests.billing.chain.makes import chain, flaws

LINES = chain(3)


def resealed(text: bytes, **changes: Any) -> bytes:
    """A line with other facts and the hash that fits them; `chain` changes its place."""
    line = msgspec.json.decode(text)
    place = line.pop("chain") | changes.pop("chain", {})
    line |= changes
    previous = bytes.fromhex(place["previous"])
    hashed = hash_of(previous, day=place["day"], sequence=place["sequence"], digest=digest_of(line))
    return canonical({**line, "chain": {**place, "hash": hashed.hex()}})


def usage(output: Any) -> dict[str, Any]:
    return {**msgspec.json.decode(LINES[0])["usage"], "output": output}


@pytest.mark.parametrize(
    "changes",
    [
        {"chain": {"sequence": 1.0}},
        {"usage": usage(7.0)},
        {"status": 200.0},
        {"version": 1.0},
        {"chain": {"day": "2026-11-30\n"}},
        {"chain": {"day": "2026-11-31"}},
        {"chain": {"day": "0000-00-00"}},
        {"chain": {"previous": "0" * 64 + "\n"}},
        {"currency": "USD\n"},
        {"posted_at": "2026-11-30T22:00:02.000000"},
        {"posted_at": "2026-11-30T22:00:02Z"},
        {"admitted_at": "2026-11-30T23:00:00.000000+01:00"},
        {"admitted_at": "0001-01-01T00:00:00.000000Z"},
        {"settled_at": "9999-12-31T23:59:59.999999Z"},
    ],
)
def test_what_is_written_in_another_way_is_unreadable_though_its_hash_fits(changes: dict[str, Any]) -> None:
    assert flaws([resealed(LINES[0], **changes)]) == {Flaw.UNREADABLE}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"sequence":1}', b'"sequence":18446744073709551616}'),
        (b'"sequence":1}', b'"sequence":1e400}'),
        (b'"status":200', b'"status":-9223372036854775809'),
        (b'"status":200', b'"status":' + b"9" * 5000),
        (b'"output":7', b'"output":' + b"9" * 40),
        (b'"model":"small"', b'"model":"\\ud800"'),
        (b'"model":"small"', b'"model":"\xed\xa0\x80"'),
        (b'"model":"small"', b'"model":' + b"[" * 100_000),
        (b'"unknown_bound":null', b'"unknown_bound":' + b'{"input":' * 100_000),
    ],
)
def test_what_no_number_or_text_can_be_is_unreadable(old: bytes, new: bytes) -> None:
    assert old in LINES[0]
    assert flaws([LINES[0].replace(old, new)]) == {Flaw.UNREADABLE}


@given(
    st.integers(0, 2), st.sampled_from([b'"', b"{", b"1.0", b"1e5", b"null", b"[]", b"-1", b"9" * 30, b"\\"])
)
def test_whatever_stands_in_a_number_s_place_the_program_goes_on(number: int, other: bytes) -> None:
    for match in re.finditer(rb"(?<=:)-?[0-9]+(?=[,}])", LINES[number]):
        spoiled = LINES[number][: match.start()] + other + LINES[number][match.end() :]
        check = Check(Scope(), zone=ZoneInfo("Pacific/Kiritimati"))
        for text in (*LINES[:number], spoiled, *LINES[number + 1 :]):
            check.take(text)
        check.finish()
        assert any(finding.line == number + 1 for finding in check.findings)


@pytest.mark.parametrize(
    "change",
    [{"day": "2026-11-31"}, {"day": "2026-11-30\n"}, {"hash": "0" * 64 + "\n"}, {"sequence": 0}],
)
def test_heads_that_are_none_are_not_taken(change: dict[str, Any]) -> None:
    head = {"tenant_id": "ten_1", "day": "2026-11-30", "sequence": 4, "hash": "0" * 64, "open": False}
    assert len(read_heads(canonical({"data": [head]}))) == 1
    with pytest.raises(Unreadable):
        read_heads(canonical({"data": [head | change]}))
