"""What people see at a terminal: tables, questions, no colour where none is wanted."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.cli.fake_control import FakeControl

ROOT = Path(__file__).resolve().parents[3]
TENANT = {"id": "ten_1", "name": "[red]Demo", "currency": "USD", "timezone": "UTC", "status": "active"}


def _at_terminal(
    control: FakeControl, *arguments: str, typed: str = "", **environment: str
) -> tuple[int, str]:
    """Exit code and all that a terminal shows of one command line, after something was typed."""
    master, terminal = pty.openpty()
    known = {"TERM": "xterm", "COLUMNS": "100", "STEELYARD_CONTROL_URL": control.url}
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, **known, **environment},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.write(master, typed.encode())
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError:  # how Linux says that nobody writes to a terminal any more
        pass
    finally:
        os.close(master)
    return process.wait(), shown.decode()


def test_a_table_has_weight_and_takes_no_markup_from_names(control: FakeControl) -> None:
    control.lists("/tenants", TENANT)
    code, shown = _at_terminal(control, "tenants", "list")
    assert code == 0
    assert "[red]Demo" in shown
    assert "\x1b[1m" in shown


@pytest.mark.parametrize("quiet", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_where_no_colour_is_wanted_there_is_none(control: FakeControl, quiet: dict[str, str]) -> None:
    control.lists("/tenants", TENANT)
    _, shown = _at_terminal(control, "tenants", "list", **quiet)
    assert "[red]Demo" in shown
    assert "\x1b[3" not in shown


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 6), ("\n", 6)])
def test_an_ending_happens_only_after_a_yes(control: FakeControl, typed: str, code: int) -> None:
    control.gives("POST /keys/key_1/revoke", {"id": "key_1", "state": "revoked"})
    outcome, shown = _at_terminal(control, "keys", "revoke", "key_1", typed=typed)
    assert outcome == code
    assert "End key_1 now, for good? [y/N]" in shown
    assert bool(control.asked) is (code == 0)


def test_a_table_wider_than_the_terminal_keeps_its_ids_whole(control: FakeControl) -> None:
    ids = {"request_id": "req_" + "0" * 32, "model": "a-model-with-quite-a-long-name-of-its-own"}
    control.lists("/requests", {**ids, "admitted_at": "2026-11-30T22:17:25.793123Z", "outcome": "completed"})
    _, shown = _at_terminal(control, "requests", "list", COLUMNS="60")
    for text in (*ids.values(), "2026-11-30T22:17:25.793Z"):
        assert text in shown
