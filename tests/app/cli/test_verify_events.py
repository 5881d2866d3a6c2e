"""`steelyard usage events` and `steelyard verify events`: download, check, say what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from billing.chain.lines import event_line
from tests.app.cli.conftest import Steelyard
from tests.app.cli.fake_control import FakeControl
from tests.billing.chain.makes import TENANT, chain, event_row, head_of, seal, withheld

CHAIN = chain()
TOTAL = "0.00025704"
EVENTS = "/v1/usage/events"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "events.ndjson", CHAIN)


def written(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def heads_file(path: Path, lines: list[bytes]) -> Path:
    heads = [head_of(line) for line in lines]
    data = [{"tenant_id": h.tenant_id, "day": h.day, "sequence": h.sequence, "hash": h.hash} for h in heads]
    path.write_text(json.dumps({"object": "list", "data": data}))
    return path


def end(lines: int, following: str | None) -> bytes:
    told = {"lines": lines, "next": following, "object": "usage.page", "version": 1}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def test_a_right_file_gets_its_sums_by_day_and_model_and_a_verdict(steelyard: Steelyard, file: Path) -> None:
    result = steelyard("verify", "events", str(file), "--expect-total", f"{TOTAL} USD")
    assert result.code == 0
    assert "RIGHT: the chain is whole" in result.out
    assert f"total {TOTAL} USD" in result.out
    assert "by day of admission (UTC)" in result.out
    days = [line.split()[:4] for line in result.out.splitlines() if line.startswith("2026-")]
    assert days == [["2026-11-30", "small", "USD", "4"], ["2026-12-01", "small", "USD", "8"]]


def test_days_are_cut_in_the_zone_that_was_asked_for(steelyard: Steelyard, file: Path) -> None:
    told = steelyard("verify", "events", str(file), "--zone", "America/New_York", "--json").json
    assert told["zone"] == "America/New_York"
    assert [row["day"] for row in told["sums"]] == ["2026-11-30"]
    assert told["totals"] == {"USD": TOTAL}
    assert (told["right"], told["findings"], told["start"]) == (
        True,
        [],
        "begins with the tenant's first line",
    )


def test_a_bad_line_is_named_with_its_number_its_request_and_what_is_wrong(
    steelyard: Steelyard, tmp_path: Path
) -> None:
    spoiled = [*CHAIN[:4], CHAIN[4].replace(b'"output":7', b'"output":8', 1), *CHAIN[6:]]
    file = written(tmp_path / "spoiled.ndjson", spoiled)
    result = steelyard("verify", "events", str(file))
    assert result.code == 1
    assert "WRONG: 2 arithmetic, 1 changed, 1 missing" in result.out
    bad = [line for line in result.out.splitlines() if line.split()[:1] == ["5"]]
    assert len(bad) == 3
    assert all(f"req_{4:032x}" in line for line in bad)
    told = steelyard("verify", "events", str(file), "--json").json
    assert told["flaws"]["changed"] == told["flaws"]["missing"] == 1
    assert {finding["line"] for finding in told["findings"]} == {5, 6}


def test_kept_heads_show_what_was_cut(steelyard: Steelyard, file: Path, tmp_path: Path) -> None:
    cut = written(tmp_path / "cut.ndjson", CHAIN[:6])
    kept = heads_file(tmp_path / "heads.json", [CHAIN[3], CHAIN[11]])
    assert steelyard("verify", "events", str(cut)).code == 0
    assert "cut from the end would not show" in steelyard("verify", "events", str(cut)).out
    assert steelyard("verify", "events", str(cut), "--heads", str(kept)).code == 1
    whole = steelyard("verify", "events", str(file), "--heads", str(kept))
    assert (whole.code, "would not show after line 8 of 2026-12-01" in whole.out) == (0, True)
    first = ("--heads", str(kept), "--to", "2026-12-01")
    assert steelyard("verify", "events", str(written(cut, CHAIN[:4])), *first).code == 0


def test_a_day_is_compared_however_it_is_written(steelyard: Steelyard, tmp_path: Path) -> None:
    cut = written(tmp_path / "cut.ndjson", CHAIN[:6])
    kept = heads_file(tmp_path / "heads.json", [CHAIN[11]])
    until = ("--from", "20261130", "--to", "20261202")
    assert steelyard("verify", "events", str(cut), "--heads", str(kept), *until).code == 1


def test_what_a_file_holds_moves_no_cursor_of_a_terminal(steelyard: Steelyard, tmp_path: Path) -> None:
    row = event_row(1, model_name="small\x1b[2J\r\u202eRIGHT")
    file = written(tmp_path / "odd.ndjson", seal([(event_line(row), date(2026, 11, 30))]))
    shown = steelyard("verify", "events", str(file)).out
    assert "small\\x1b[2J\\r\\u202eRIGHT" in shown
    assert not {"\x1b", "\r", "\u202e"} & set(shown)


def test_lines_that_are_withheld_are_said_to_be_in_no_sum(steelyard: Steelyard, tmp_path: Path) -> None:
    file = written(tmp_path / "some.ndjson", [*CHAIN[:11], withheld(CHAIN[11])])
    result = steelyard("verify", "events", str(file))
    assert (result.code, "1 lines are withheld" in result.out) == (0, True)


def test_a_total_that_is_not_the_expected_one_is_wrong(steelyard: Steelyard, file: Path) -> None:
    result = steelyard("verify", "events", str(file), "--expect-total", "0.0002 USD")
    assert result.code == 1
    assert f"the sum is {TOTAL} USD, expected was 0.0002" in result.out


def test_a_request_that_was_sealed_twice_is_found_though_the_chain_is_whole(
    steelyard: Steelyard, tmp_path: Path
) -> None:
    rows = [event_row(number) for number in (1, 2, 3, 2)]
    file = written(tmp_path / "twice.ndjson", seal((event_line(row), date(2026, 11, 30)) for row in rows))
    told = steelyard("verify", "events", str(file), "--json")
    assert told.code == 1
    (found,) = told.json["findings"]
    assert (found["line"], found["flaw"], found["what"]) == (4, "double", "it stands in line 2 already")


def test_a_filtered_download_is_said_to_be_one(steelyard: Steelyard, tmp_path: Path) -> None:
    some = written(tmp_path / "some.ndjson", CHAIN[::3])
    assert steelyard("verify", "events", str(some)).code == 1
    result = steelyard("verify", "events", str(some), "--partial")
    assert (result.code, "lines that were left out can't be checked" in result.out) == (0, True)


def test_a_file_without_lines_is_not_said_to_prove_anything(steelyard: Steelyard, tmp_path: Path) -> None:
    result = steelyard("verify", "events", str(written(tmp_path / "empty.ndjson", [])))
    assert (result.code, "RIGHT, but of nothing: there are no lines" in result.out) == (0, True)
    expecting = steelyard("verify", "events", str(tmp_path / "empty.ndjson"), "--expect-total", "1 USD")
    assert expecting.code == 1


def test_a_range_without_events_is_said_beside_the_empty_output(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", {"id": TENANT})
    control.gives(f"GET {EVENTS}/heads", {"object": "list", "data": []})
    control.gives(f"GET {EVENTS}", end(0, None))
    result = steelyard("usage", "events")
    assert (result.code, result.out) == (0, "")
    assert "no events in this range" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere.ndjson",),
        ("{file}", "--zone", "Mars/Olympus"),
        ("{file}", "--expect-total", "much"),
        ("{file}", "--heads", "{file}"),
        ("{file}", "--to", "2026-12-1"),
        ("{file}", "--from", "2026-12-01T00:00:00Z"),
        ("{file}", "--from", "2026-12-01", "--to", "2026-11-30"),
        ("{file}", "--texts", "{file}"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    steelyard: Steelyard, file: Path, arguments: tuple[str, ...]
) -> None:
    result = steelyard("verify", "events", *(argument.format(file=file) for argument in arguments))
    assert (result.code, result.out) == (2, "")
    assert "try: " in result.err


def test_a_download_goes_from_page_to_page_and_keeps_the_lines_alone(
    steelyard: Steelyard, control: FakeControl
) -> None:
    control.lists("/tenants", {"id": TENANT})
    control.gives(f"GET {EVENTS}/heads", {"object": "list", "data": []})
    asked = f"GET {EVENTS}?from=2026-11-30&tenant_id={TENANT}&limit=100000"
    control.gives(asked, b"".join(line + b"\n" for line in CHAIN[:5]) + end(5, "x"))
    control.gives(f"{asked}&after=x", b"".join(line + b"\n" for line in CHAIN[5:]) + end(7, None))
    result = steelyard("usage", "events", "--from", "2026-11-30")
    assert result.code == 0
    assert result.out.encode() == b"".join(line + b"\n" for line in CHAIN)


def test_a_download_that_was_cut_fails(steelyard: Steelyard, control: FakeControl) -> None:
    control.gives(f"GET {EVENTS}", b"".join(line + b"\n" for line in CHAIN[:5]))
    result = steelyard("usage", "events", "--tenant", TENANT, "--model", "small")
    assert result.code == 7
    assert "broke off" in result.err


def test_heads_are_kept_as_they_are_told(steelyard: Steelyard, control: FakeControl, tmp_path: Path) -> None:
    head = {"tenant_id": TENANT, "day": "2026-11-30", "sequence": 4, "hash": "0" * 64, "open": True}
    control.gives(f"GET {EVENTS}/heads", {"object": "list", "data": [head]})
    assert steelyard("usage", "heads", "--tenant", TENANT, "--json").json["data"] == [head]
    assert "2026-11-30" in steelyard("usage", "heads", "--tenant", TENANT).out


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_hundred_thousand_lines_need_no_more_memory_than_a_thousand(tmp_path: Path, times: int) -> None:
    lines = chain(2000, step=timedelta(seconds=1))
    small, large = tmp_path / "small.ndjson", tmp_path / "large.ndjson"
    written(small, lines[:1000])
    with large.open("wb") as file:
        for _ in range(times):
            file.writelines(line + b"\n" for line in lines)
    of_small, of_large = (peak_kilobytes(path) for path in (small, large))
    assert of_large - of_small < 8_000


def peak_kilobytes(file: Path) -> int:
    """The most memory that a check of a file took."""
    command = [sys.executable, "-m", "app.cli.main", "verify", "events", str(file), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode in (0, 1)
    return used.ru_maxrss
