"""What people see: changes once, progress in MiB, and a curl line that a shell takes as printed."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence

from rich.console import Console

from app.core.clock import ManualClock
from app.stack.board import Board, Row, State
from app.stack.data_dir import Credentials
from app.stack.screen import LiveScreen, PlainScreen, print_rows, screen_for, summary

CLOCK = ManualClock()


def plain(rows: Sequence[Row], *, known: Sequence[Row] = ()) -> str:
    stream = io.StringIO()
    screen = PlainScreen(stream, CLOCK, known=known)
    screen.show(rows)
    screen.show(rows)
    screen.close()
    return stream.getvalue()


def test_each_change_is_one_line() -> None:
    ready = Row("postgres", State.READY, started_ms=1000, ready_ms=2500)
    assert plain([ready, Row("late")]) == "postgres     ready        1.5 s\n"


def test_what_is_known_needs_no_line() -> None:
    row = Row("engine", State.READY)
    assert plain([row], known=[row]) == ""


def test_without_a_terminal_there_are_plain_lines() -> None:
    assert isinstance(screen_for(io.StringIO(), CLOCK), PlainScreen)


def test_a_download_shows_its_progress() -> None:
    stream = io.StringIO()
    print_rows(
        [Row("model", State.STARTING, detail="downloading", done=5 << 20, total=10 << 20)],
        now_ms=0,
        stream=stream,
    )
    assert "5/10 MiB" in stream.getvalue()
    assert "downloading" in stream.getvalue()


def test_the_live_screen_leaves_the_last_state() -> None:
    stream = io.StringIO()
    screen = LiveScreen(stream, CLOCK)
    screen.show([Row("gateway-1", State.FAILED, detail="exited with 1")])
    screen.close()
    assert "exited with 1" in stream.getvalue()
    assert Console(file=stream).file is stream


def test_the_curl_line_works_as_printed() -> None:
    credentials = Credentials(
        "admin@x", "word", gateway_url="http://g", control_url="http://c", api_key="sk-sy-1", model="tiny"
    )
    text = summary(credentials, took_s=1.25, data_dir="/my data", stays=True, command=".venv/bin/steelyard")
    (line,) = (line for line in text.splitlines() if line.startswith("curl "))
    words = shlex.split(line)
    assert words[:4] == ["curl", "http://g/v1/chat/completions", "-H", "Authorization: Bearer sk-sy-1"]
    assert json.loads(words[-1])["model"] == "tiny"
    assert ".venv/bin/steelyard down --data-dir '/my data'" in text
    assert json.loads(words[-1])["max_tokens"] == 64
    assert "word" in text


def test_a_board_counts_its_changes() -> None:
    board = Board(["one", "two"])
    board.change("two", state=State.READY, pid=3)
    assert board.version == 1
    assert [row.name for row in board.rows] == ["one", "two"]
    assert board["two"].pid == 3
