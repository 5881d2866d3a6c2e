"""Starts services in the order of a plan, restarts what falls, and stops everything in reverse order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.core.clock import Clock
from app.core.errors import DependencyError
from app.stack.board import Board, Progress, Report, State
from app.stack.plan import Backoff, Plan
from app.stack.process_table import birth_of
from app.stack.program import Program, last_lines, log_path, open_log

_POLL_S = 0.05
_FIRST_TRIES = 3
"""A service that falls so often before it was ever ready fails the whole start."""


@dataclass(frozen=True)
class Service:
    """A program that shall run as long as we do.   start_timeout_s: longest time until it is ready."""

    name: str
    program: Program
    after: Sequence[str] = ()
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 12.0


@dataclass(frozen=True)
class Step:
    """Something done once at the start. `act` reports progress and returns a word on what it did."""

    name: str
    act: Callable[[Report], Awaitable[str]]
    after: Sequence[str] = ()


@dataclass
class _Signs:
    """ready: it may be relied upon.   stopped: it is gone, or never was."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs `units` until told to stop. Use from one event loop, in the thread that shall own the children."""

    def __init__(
        self,
        units: Sequence[Service | Step],
        *,
        logs: Path,
        clock: Clock,
        backoff: Backoff | None = None,
    ) -> None:
        self._units = {unit.name: unit for unit in units}
        self._plan = Plan({unit.name: unit.after for unit in units})
        self.board = Board(self._plan.order())
        self._logs = logs
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._signs = {name: _Signs() for name in self._units}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all; returns when all are ready. Raises DependencyError naming what failed and why."""
        self._tasks = [asyncio.create_task(self._run(name), name=name) for name in self.board_names()]
        ready = asyncio.create_task(self._all_ready())
        pending: set[asyncio.Task[None]] = {*self._tasks, ready}
        try:
            while ready in pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*done)
        finally:
            ready.cancel()

    async def watch(self) -> None:
        """Keep the services up; returns never. Raises if a watching task itself breaks."""
        await asyncio.gather(*self._tasks)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop all, each after those that rely on it; by force where its time is over. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._stop(name) for name in self._units))

    def kill(self) -> None:
        """End every child at once, without order."""
        for process in self._processes.values():
            kill_group(process)

    def board_names(self) -> list[str]:
        return [row.name for row in self.board.rows]

    async def _all_ready(self) -> None:
        for signs in self._signs.values():
            await signs.ready.wait()

    async def _run(self, name: str) -> None:
        unit = self._units[name]
        for other in unit.after:
            await self._signs[other].ready.wait()
        self.board.change(name, state=State.STARTING, started_ms=self._clock.now_ms())
        try:
            if isinstance(unit, Step):
                await self._do(unit)
            else:
                await self._keep(unit)
        except DependencyError as error:
            self.board.change(name, state=State.FAILED, detail=error.public_message.splitlines()[0])
            raise

    async def _do(self, step: Step) -> None:
        def report(progress: Progress) -> None:
            done, total, what = progress
            self.board.change(step.name, done=done, total=total, detail=what)

        detail = await step.act(report)
        self.board.change(step.name, state=State.DONE, ready_ms=self._clock.now_ms(), detail=detail, total=0)
        self._signs[step.name].ready.set()

    async def _keep(self, service: Service) -> None:
        falls = 0
        while True:
            started = self._clock.monotonic()
            process = await self._spawn(service)
            if await self._becomes_ready(service, process):
                self._mark_ready(service.name)
                await _ended(process)
            falls = self._backoff.falls(falls, ran_s=self._clock.monotonic() - started)
            self._mark_fallen(service, process, falls=falls)
            await asyncio.sleep(self._backoff.delay_s(falls))

    async def _spawn(self, service: Service) -> subprocess.Popen[bytes]:
        await asyncio.to_thread(service.program.prepare)
        with open_log(self._logs, service.name) as log:
            process = service.program.spawn(log)
        self._processes[service.name] = process
        self.board.change(service.name, pid=process.pid, birth=birth_of(process.pid))
        return process

    async def _becomes_ready(self, service: Service, process: subprocess.Popen[bytes]) -> bool:
        deadline = self._clock.monotonic() + service.start_timeout_s
        while process.poll() is None and self._clock.monotonic() < deadline:
            if await asyncio.to_thread(service.program.is_ready):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    def _mark_ready(self, name: str) -> None:
        first = not self._signs[name].ready.is_set()
        fields = {"ready_ms": self._clock.now_ms()} if first else {}
        self.board.change(name, state=State.READY, detail="", **fields)
        self._signs[name].ready.set()

    def _mark_fallen(self, service: Service, process: subprocess.Popen[bytes], *, falls: int) -> None:
        """Take note of a fall. Raises DependencyError if it was never up and fell too often."""
        how = ended_how(process)
        kill_group(process)
        process.wait()
        if falls >= _FIRST_TRIES and not self._signs[service.name].ready.is_set():
            words = last_lines(log_path(self._logs, service.name))
            raise DependencyError(f"{service.name} does not start: it {how}\n{words}")
        wait_s = self._backoff.delay_s(falls)
        detail = f"{how}, {falls} in a row; next try in {wait_s:.1f} s"
        row = self.board[service.name]
        self.board.change(
            service.name, state=State.RESTARTING, restarts=row.restarts + 1, pid=0, birth=0, detail=detail
        )

    async def _stop(self, name: str) -> None:
        for other in self._plan.dependents(name):
            await self._signs[other].stopped.wait()
        unit, process = self._units[name], self._processes.get(name)
        if isinstance(unit, Service) and process is not None:
            await self._end(unit, process)
        self._signs[name].stopped.set()

    async def _end(self, service: Service, process: subprocess.Popen[bytes]) -> None:
        self.board.change(service.name, state=State.STOPPING, detail="")
        with suppress(ProcessLookupError):
            process.send_signal(service.program.stop_signal)
        try:
            await asyncio.wait_for(_ended(process), service.stop_timeout_s)
        except TimeoutError:
            self.board.change(service.name, detail=f"killed after {service.stop_timeout_s:.0f} s")
        kill_group(process)
        await _ended(process)
        self.board.change(service.name, state=State.STOPPED, pid=0, birth=0)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the session that `process` led, the process included."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def ended_how(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, in words."""
    code = process.poll()
    if code is None:
        return "was not ready in time"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


async def _ended(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:  # noqa: ASYNC110 - nothing portable announces a child's end
        await asyncio.sleep(_POLL_S)
