"""One run of the stack, from lock to lock: start, keep state.json and the screen true, stop in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from app.core.clock import Clock
from app.core.errors import DependencyError
from app.stack.addresses import require_free
from app.stack.data_dir import Phase, StackState
from app.stack.process_table import end_leftovers
from app.stack.screen import PlainScreen, Screen
from app.stack.services import Stack
from app.stack.supervisor import Supervisor

_REFRESH_S = 0.1


class Run:
    """Call `live` once, in the main thread; it returns when the stack was told to stop and has stopped."""

    def __init__(self, stack: Stack, *, screen: Screen, clock: Clock) -> None:
        self._stack = stack
        self._screen = screen
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._phase: Phase = "starting"
        self._error = ""
        self._interrupted = asyncio.Event()
        self._supervisor = Supervisor(stack.units(), logs=stack.data.logs, clock=clock)

    async def live(self, on_ready: Callable[[float], None]) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; a second one ends everything at once.

        on_ready: called once with the seconds that the start took. Raises DependencyError if the start fails.
        """
        self._listen()
        painter = asyncio.create_task(self._paint())
        try:
            if await self._until_interrupted(self._supervisor.start()):
                self._enter("ready")
                self._screen.close()
                self._screen = PlainScreen(sys.stderr, self._clock, known=self._supervisor.board.rows)
                on_ready((self._clock.now_ms() - self._started_ms) / 1000)
                await self._until_interrupted(self._supervisor.watch())
            self._enter("stopping")
        except DependencyError as error:
            self._error = error.public_message
            raise
        finally:
            await self._supervisor.stop()
            painter.cancel()
            self._enter("failed" if self._error else "stopped")
            self._screen.close()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        if self._interrupted.is_set():
            self._supervisor.kill()
        self._interrupted.set()

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> bool:
        """True if `work` came to its end, False if a signal came first. Raises what `work` raises."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self._interrupted.wait())
        await asyncio.wait([task, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return False

    async def _paint(self) -> None:
        """Keep state file and screen up to date: when something changed, and times while they run."""
        version = -1
        while True:
            board = self._supervisor.board
            changed, version = board.version != version, board.version
            if changed:
                self._write_state()
            if changed or self._phase != "ready":
                self._screen.show(board.rows)
            await asyncio.sleep(_REFRESH_S)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._write_state()
        self._screen.show(self._supervisor.board.rows)

    def _write_state(self) -> None:
        state = StackState(
            pid=os.getpid(),
            started_ms=self._started_ms,
            phase=self._phase,
            gateway_url=self._stack.addresses.gateway_url,
            console_url=self._stack.addresses.control_url,
            rows=self._supervisor.board.rows,
            error=self._error,
        )
        with suppress(OSError):  # a full disk must not take a running stack down
            self._stack.data.write_state(state)


def run(stack: Stack, *, screen: Screen, clock: Clock, on_ready: Callable[[float], None]) -> None:
    """Hold the data folder and run the stack in it until it is told to stop. Raises DependencyError."""
    stack.data.make()
    with stack.data.locked():
        clear_the_way(stack)
        asyncio.run(_live(stack, screen=screen, clock=clock, on_ready=on_ready))


def clear_the_way(stack: Stack) -> None:
    """End what a killed run left, then require the ports to be free."""
    last = stack.data.read_state()
    if last is not None:
        end_leftovers((row.pid, row.birth) for row in last.rows)
    require_free(stack.addresses)


async def _live(stack: Stack, *, screen: Screen, clock: Clock, on_ready: Callable[[float], None]) -> None:
    await Run(stack, screen=screen, clock=clock).live(on_ready)
