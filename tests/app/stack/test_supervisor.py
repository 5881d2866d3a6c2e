"""The supervisor with real child processes: order, restarts, failures, and an end in reverse."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.clock import SystemClock
from app.core.errors import DependencyError
from app.stack.board import Progress, Report, State
from app.stack.plan import Backoff
from app.stack.process_table import birth_of, end_leftovers, is_alive
from app.stack.program import Command, start
from app.stack.supervisor import Service, Step, Supervisor

STAYS = """
import pathlib, signal, sys, time
me = pathlib.Path(sys.argv[1])
journal = me.parent / "journal"
def end(*_):
    with journal.open("a") as file: file.write(f"{me.name} ends\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with journal.open("a") as file: file.write(f"{me.name} begins\\n")
me.touch()
while True: signal.pause()
"""
STUBBORN = STAYS.replace("    sys.exit(0)\n", "")


def service(
    folder: Path, name: str, *, after: tuple[str, ...] = (), code: str = STAYS, stop_s: float = 10
) -> Service:
    """A service that is ready once it has made a file of its name."""
    ready = folder / name
    command = Command([sys.executable, "-c", code, str(ready)], dict(os.environ), probe=ready.exists)
    return Service(name, command, after=after, start_timeout_s=20, stop_timeout_s=stop_s)


def journal(folder: Path) -> list[str]:
    return (folder / "journal").read_text().splitlines()


@asynccontextmanager
async def supervised(folder: Path, *units: Service | Step) -> AsyncIterator[Supervisor]:
    backoff = Backoff(first_s=0.01, most_s=0.05)
    supervisor = Supervisor(units, logs=folder / "logs", clock=SystemClock(), backoff=backoff)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def until(true: Callable[[], bool]) -> None:
    """Return once `true` is; the test's own time limit bounds it."""
    while not true():
        await asyncio.sleep(0.01)


def step(act: Callable[[Report], Awaitable[str]], name: str = "step", *, after: tuple[str, ...] = ()) -> Step:
    return Step(name, act, after=after)


async def test_services_begin_in_order_and_end_in_reverse(tmp_path: Path) -> None:
    units = service(tmp_path, "base"), service(tmp_path, "middle", after=("base",))
    async with supervised(tmp_path, *units, service(tmp_path, "top", after=("middle",))) as supervisor:
        await supervisor.start()
        assert {row.state for row in supervisor.board.rows} == {State.READY}
    assert journal(tmp_path) == [
        *("base begins", "middle begins", "top begins"),
        *("top ends", "middle ends", "base ends"),
    ]
    assert {row.state for row in supervisor.board.rows} == {State.STOPPED}


async def test_a_killed_service_comes_back_and_the_others_stay(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "one"), service(tmp_path, "two")) as supervisor:
        await supervisor.start()
        one, two = supervisor.board["one"], supervisor.board["two"]
        old, other = one.pid, two.pid
        (tmp_path / "one").unlink()
        os.kill(old, signal.SIGKILL)
        await until(lambda: one.state is State.READY and one.pid != old)
        assert (one.restarts, two.restarts, two.pid) == (1, 0, other)


async def test_a_service_that_never_starts_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; sys.exit('no such table')"
    async with supervised(
        tmp_path, service(tmp_path, "broken", code=code), service(tmp_path, "fine")
    ) as supervisor:
        with pytest.raises(
            DependencyError, match=r"(?s)broken does not start: it exited with 1\n.*no such table"
        ):
            await supervisor.start()
        assert supervisor.board["broken"].state is State.FAILED


async def test_a_failed_step_fails_the_start_and_holds_back_what_waits_for_it(tmp_path: Path) -> None:
    async def fail(_: Report) -> str:
        raise DependencyError("no network\nput the file there by hand")

    async with supervised(tmp_path, step(fail), service(tmp_path, "late", after=("step",))) as supervisor:
        with pytest.raises(DependencyError, match="by hand"):
            await supervisor.start()
        assert supervisor.board["step"].detail == "no network"
        assert supervisor.board["late"].state is State.WAITING


async def test_a_step_reports_its_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []

    async def fetch(report: Report) -> str:
        report(Progress(5, 10, "downloading"))
        row = supervisor.board["step"]
        seen.append((row.done, row.total, row.detail))
        return "fetched"

    async with supervised(tmp_path, step(fetch)) as supervisor:
        await supervisor.start()
        assert seen == [(5, 10, "downloading")]
        assert (supervisor.board["step"].state, supervisor.board["step"].detail) == (State.DONE, "fetched")


async def test_a_service_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, service(tmp_path, "deaf", code=STUBBORN, stop_s=0.2)) as supervisor:
        await supervisor.start()
    assert supervisor.board["deaf"].state is State.STOPPED
    assert "killed" in supervisor.board["deaf"].detail


async def test_stopping_in_the_middle_of_a_start_leaves_nothing_behind(tmp_path: Path) -> None:
    async def never(_: Report) -> str:
        await asyncio.Event().wait()
        return ""

    async with supervised(tmp_path, service(tmp_path, "base"), step(never, after=("base",))) as supervisor:
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: supervisor.board["step"].state is State.STARTING)
        pid = supervisor.board["base"].pid
        starting.cancel()
    assert birth_of(pid) == 0


async def test_leftovers_of_a_killed_supervisor_are_ended_and_strangers_are_not(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        left = start(
            [sys.executable, "-c", STAYS, str(tmp_path / "left")],
            environment=os.environ,
            output=log,
            errors=log,
        )
    await until((tmp_path / "left").exists)
    birth = birth_of(left.pid)
    assert is_alive(left.pid, birth)
    assert end_leftovers([(os.getpid(), birth_of(os.getpid()) + 1), (left.pid, birth), (0, 0)]) == 1
    assert left.wait() == 0
