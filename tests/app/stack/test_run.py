"""One run from lock to lock, in a process of its own, with small services: signals, kills, and what stays."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack import commands
from app.stack.account import myself
from app.stack.board import State
from app.stack.data_dir import DataDir
from app.stack.process_table import birth_of
from app.stack.program import our_environment

TINY = """
import os, sys
from pathlib import Path
from app.core.clock import SystemClock
from app.stack import commands
from app.stack.addresses import Addresses
from app.stack.data_dir import DataDir
from app.stack.program import Command
from app.stack.run import run
from app.stack.screen import PlainScreen
from app.stack.supervisor import Service

SLEEPER = "import pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); signal.pause()"

class TinyStack:
    data = DataDir(Path(sys.argv[1]))
    addresses = Addresses(int(sys.argv[2]), gateways=1)
    def units(self):
        return [self.service("base"), self.service("top", "base")]
    def service(self, name, *after):
        sign = self.data.root / f"{name}-{os.getpid()}"
        command = Command([sys.executable, "-c", SLEEPER, str(sign)], os.environ, sign.exists)
        return Service(name, command, after)

clock = SystemClock()
screen = PlainScreen(sys.stderr, clock)
try:
    run(TinyStack(), screen=screen, clock=clock, on_ready=lambda _: print("ready", flush=True))
except DependencyError as error:
    sys.exit(error.public_message)
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "a folder")


class Tiny:
    """A running tiny stack."""

    def __init__(self, data: DataDir, *, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TINY, str(data.root), str(port)],
            env=our_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **myself().arguments(),
        )

    def is_ready(self) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "ready\n"


@pytest.fixture
def tiny(data: DataDir) -> Iterator[Tiny]:
    stack = Tiny(data, port=FREE_BASE)
    yield stack
    stack.process.kill()
    stack.process.communicate()


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
FREE_BASE = 28200
"""The tiny services bind nothing; this only has to be free."""


def pids(data: DataDir) -> list[int]:
    state = data.read_state()
    assert state is not None
    return [row.pid for row in state.rows]


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_stops_everything_and_leaves_the_folder_free(
    tiny: Tiny, data: DataDir, number: signal.Signals
) -> None:
    assert tiny.is_ready()
    children = pids(data)
    tiny.process.send_signal(number)
    tiny.process.communicate()
    assert tiny.process.returncode == 0
    assert [birth_of(pid) for pid in children] == [0, 0]
    state = data.read_state()
    assert state is not None
    assert (state.phase, {row.state for row in state.rows}) == ("stopped", {State.STOPPED})
    assert data.holder() is None


def test_a_killed_supervisor_takes_its_children_along_and_can_start_again(tiny: Tiny, data: DataDir) -> None:
    assert tiny.is_ready()
    children = pids(data)
    tiny.process.kill()
    for pid in children:
        wait_for_end(pid)
    again = Tiny(data, port=FREE_BASE)
    assert again.is_ready()
    again.process.terminate()
    again.process.communicate()
    assert again.process.returncode == 0


def test_down_returns_when_the_process_has_gone(tiny: Tiny, data: DataDir) -> None:
    assert tiny.is_ready()
    assert commands.down(data.root) == 0
    assert birth_of(tiny.process.pid) == 0
    assert data.holder() is None


def test_two_stacks_on_one_folder_are_refused_and_the_first_goes_on(tiny: Tiny, data: DataDir) -> None:
    assert tiny.is_ready()
    second = Tiny(data, port=FREE_BASE + 100)
    _, words = second.process.communicate()
    assert second.process.returncode == 1
    assert f"(pid {tiny.process.pid})" in words
    assert data.holder() == tiny.process.pid


def test_two_stacks_in_two_folders_run_side_by_side(tiny: Tiny, data: DataDir) -> None:
    assert tiny.is_ready()
    other = Tiny(DataDir(data.root.parent / "other"), port=FREE_BASE + 100)
    assert other.is_ready()
    other.process.terminate()
    other.process.communicate()
    assert tiny.process.poll() is None


def test_a_service_that_dies_in_a_run_is_shown_and_comes_back(tiny: Tiny, data: DataDir) -> None:
    assert tiny.is_ready()
    base, top = pids(data)
    os.kill(top, signal.SIGKILL)
    assert tiny.process.stderr is not None
    while "restarting" not in tiny.process.stderr.readline():
        assert tiny.process.poll() is None
    while "ready" not in tiny.process.stderr.readline():
        assert tiny.process.poll() is None
    assert birth_of(base) > 0
