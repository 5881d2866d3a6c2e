"""What the verbs say where nothing runs, and where something stands in the way."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack import commands
from app.stack.board import Row, State
from app.stack.data_dir import DataDir, StackState
from app.stack.doctor import examine
from app.stack.log_reader import LogTail
from app.stack.program import last_lines, log_path, open_log


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def state(*rows: Row, phase: str = "ready") -> StackState:
    return StackState(1, 2, phase, "http://127.0.0.1:1", "http://127.0.0.1:2", rows=list(rows))  # type: ignore[arg-type]


def test_down_of_nothing_is_no_failure(data: DataDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.down(data.root) == 0
    assert "nothing runs" in capsys.readouterr().out


def test_status_before_any_start_says_how_to_start(data: DataDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.status(data.root) == 1
    assert "steelyard up" in capsys.readouterr().out


def test_status_never_takes_the_state_of_a_dead_run_for_a_running_one(
    data: DataDir, capsys: pytest.CaptureFixture[str]
) -> None:
    data.make()
    data.write_state(state(Row("postgres", State.READY, pid=1)))
    assert commands.status(data.root, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["running"], said["phase"]) == (False, "stopped")


def test_status_of_a_running_stack_is_good_only_if_every_service_is(
    data: DataDir, capsys: pytest.CaptureFixture[str]
) -> None:
    data.make()
    with data.locked():
        data.write_state(state(Row("postgres", State.READY), Row("migrate", State.DONE)))
        assert commands.status(data.root) == 0
        data.write_state(state(Row("postgres", State.READY), Row("gateway-1", State.RESTARTING)))
        assert commands.status(data.root) == 1
    assert "restarting" in capsys.readouterr().out


@pytest.mark.parametrize("detach", [False, True])
def test_up_on_a_port_in_use_names_port_and_flag(
    data: DataDir, taken_port: int, capsys: pytest.CaptureFixture[str], detach: bool
) -> None:
    assert commands.up(commands.UpOptions(data_dir=data.root, port=taken_port, detach=detach)) == 1
    words = capsys.readouterr().err
    assert f"port {taken_port} (gateway)" in words
    assert "--port" in words


def test_logs_of_an_unknown_service_name_the_known_ones(
    data: DataDir, capsys: pytest.CaptureFixture[str]
) -> None:
    data.make()
    with open_log(data.logs, "settler") as log:
        log.write(b"one\ntwo\nthree\n")
    assert commands.logs(data.root, service="setler") == 1
    assert "settler" in capsys.readouterr().err
    assert commands.logs(data.root, service="settler", lines=2) == 0
    assert capsys.readouterr().out == "two\nthree\n"
    assert commands.logs(data.root, lines=1) == 0
    assert capsys.readouterr().out == "settler | three\n"


def test_a_large_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    path = log_path(tmp_path, "gateway-1")
    path.write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    with open_log(tmp_path, "gateway-1") as log:
        log.write(b"new\n")
    assert last_lines(path) == "new"
    assert (tmp_path / "gateway-1.log.1").stat().st_size > 10 * 1024 * 1024


def test_following_a_log_yields_whole_lines_and_survives_its_replacement(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    tail = LogTail.at_end(path)
    assert tail.new_lines() == []
    with path.open("a") as file:
        file.write("one\ntw")
    assert tail.new_lines() == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert tail.new_lines() == ["two"]
    path.write_text("anew\n")
    assert tail.new_lines() == ["anew"]


def test_doctor_is_content_before_the_first_start_and_changes_nothing(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEELYARD_CACHE_DIR", str(tmp_path / "cache"))
    found = {finding.what: finding for finding in examine(data) if finding.what != "ports"}
    assert [finding for finding in found.values() if not finding.ok] == []
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_a_dead_service_and_a_clock_that_went_back(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEELYARD_CACHE_DIR", str(tmp_path / "cache"))
    data.make()
    last = state(Row("settler", State.READY, pid=2**22, birth=1))
    last.started_ms = 10**15
    with data.locked():
        data.write_state(last)
        bad = {finding.what: finding for finding in examine(data) if not finding.ok}
    assert set(bad) == {"clock", "settler"}
    assert bad["settler"].fix == "steelyard logs settler"


def test_doctor_prints_a_fix_for_a_taken_port(
    data: DataDir, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data.make()
    last = state()
    last.gateway_url = f"http://127.0.0.1:{taken_port}"
    data.write_state(last)
    assert commands.doctor(data.root) == 1
    assert "try: stop what uses them" in capsys.readouterr().out
