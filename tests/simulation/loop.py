"""An event loop whose time is virtual and whose processes can be killed at any callback.

    agenda: (when, process) ──▶ one turn of that process: its due timers and what was ready, in order

Within a process everything runs as asyncio promises (first come, first served; what a turn makes ready
runs in the next one). Between processes the seed decides: a turn starts some drawn microseconds after
its cause. Nothing waits for real time: when nothing is ready, time jumps to the next timer.

Which process a callback belongs to is told by its context, so a future that is resolved from elsewhere
wakes its waiter in the waiter's own process. A killed process is never stepped again: no `finally` of
it runs, as none does after a `kill -9`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from itertools import count
from math import inf
from random import Random
from typing import Any

_STEP_S = 0.0002
"""Longest time between a cause and the turn of the loop that it brings about."""
_OWNER: ContextVar[Process] = ContextVar("simulated process")

_RESTLESS: list[asyncio.Task[Any]] = []
"""Tasks that would not end: to drop them would unwind them in the middle of a later run."""


class Killed(BaseException):
    """The process died within this call: nothing that it does counts any more."""


class Process:
    """What lives and dies as one.

    moments: how often each kind of moment came, by name.   at_moment: decides whether one is the last.
    dead: its ports refuse all.   silent: none of its callbacks runs.
    """

    def __init__(self, loop: SimLoop, name: str, *, seen: Counter[str] | None = None) -> None:
        self.loop = loop
        self.name = name
        self.dead = False
        self.silent = False
        self.moments: Counter[str] = Counter() if seen is None else seen
        self.at_moment: Callable[[str, int], None] | None = None
        self.on_death: list[Callable[[], None]] = []
        self.ready: deque[asyncio.Handle] = deque()
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.turn_at: float | None = None
        self.frozen_until = 0.0
        self.remains: list[asyncio.Handle] = []
        loop.processes.append(self)
        self._own_context = Context()
        self._own_context.run(_OWNER.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def context(self) -> Context:
        """What makes a callback this process' own."""
        return self._own_context.copy()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str = "main") -> asyncio.Task[Any]:
        """Run a coroutine as a task of this process."""
        return self.loop.create_task(coroutine, name=f"{self.name}:{name}", context=self.context())

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call back in a turn of this process, as what a socket brings."""
        self.loop.call_soon(callback, *args, context=self.context())

    def post_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        self.loop.call_later(delay_s, callback, *args, context=self.context())

    def moment(self, kind: str) -> None:
        """One more moment at which this process may die; raises Killed if it does, or if it is dead."""
        if not self.dead and self.at_moment is not None:
            self.moments[kind] += 1
            self.at_moment(kind, self.moments[kind])
        if self.dead:
            raise Killed

    def kill(self) -> None:
        """End it as `kill -9` does. Idempotent."""
        if self.dead:
            return
        self.dead = True
        # Kept to the end of the run: a dropped coroutine would be closed, and its `finally` would run.
        self.silent = True
        self.remains = [*self.ready, *(handle for _, _, handle in self.timers)]
        self.ready.clear()
        self.timers.clear()
        for last_rite in self.on_death:
            last_rite()


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one run. Not for sockets: the outside world is simulated, the database is asked in place.

    errors: exceptions that nobody caught, as words.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._now = 0.0
        self._order = count()
        self._agenda: list[tuple[float, int, Process]] = []
        self.processes: list[Process] = []
        self.world = Process(self, "world")
        self.errors: list[str] = []
        self.turns = 0
        self._buried = False
        self._tasks: list[asyncio.Task[Any]] = []

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        owner = self._owner(handle)
        if owner.silent:
            owner.remains.append(handle)
        else:
            owner.ready.append(handle)
            self._plan(owner, self._now)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        owner = self._owner(handle)
        if owner.silent:
            owner.remains.append(handle)
        else:
            heapq.heappush(owner.timers, (when, next(self._order), handle))
            self._plan(owner, when)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)  # kept: a task that is dropped while it waits would be unwound
        return task

    async def run_in_place(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """As `asyncio.to_thread`: done a moment later, in one piece, while the others go on meanwhile."""
        _OWNER.get().moment("step")
        await asyncio.sleep(self._rng.random() * _STEP_S)
        _OWNER.get().moment("step")
        return work(*args, **named)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.run_in_place(func, *args), loop=self)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._buried and not isinstance(error, Killed):
            self.errors.append(f"{context.get('message')}: {error!r}")

    # The run.

    def run_until(self, done: Callable[[], bool], *, limit_s: float) -> bool:
        """Let it all happen until `done`; False if virtual time runs out or nothing is left to happen."""
        asyncio._set_running_loop(self)
        try:
            while self._agenda and not done():
                when, _, process = heapq.heappop(self._agenda)
                if process.silent or process.turn_at != when:
                    continue
                if when < process.frozen_until:
                    process.turn_at = None
                    self._plan(process, process.frozen_until)
                    continue
                self._now = max(self._now, when)
                if self._now > limit_s:
                    return False
                self._turn(process)
            return done()
        finally:
            asyncio._set_running_loop(None)

    def bury(self, *, most_turns: int = 20_000) -> None:
        """After the run: unwind whatever is left, so that nothing of it outlives the run. Ports stay dead."""
        self._buried = True
        for process in self.processes:
            process.silent = False
            process.dead = True
            process.frozen_until = 0.0
            process.turn_at = None
            left, process.remains = process.remains, []
            for handle in left:
                process.ready.append(handle)
                self._plan(process, self._now)
        for _ in range(3):
            self._unwind(self.turns + most_turns)
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        _RESTLESS.extend(self._tasks)

    def _unwind(self, most_turns: int) -> None:
        for task in self._tasks:
            if not task.done():
                task.cancel()
        self.run_until(lambda: self.turns > most_turns, limit_s=inf)
        self._tasks = [task for task in self._tasks if not task.done()]

    def _owner(self, handle: asyncio.Handle) -> Process:
        return handle._context.get(_OWNER, self.world)  # type: ignore[attr-defined,no-any-return]

    def _plan(self, process: Process, when: float) -> None:
        """See that the process has a turn soon after `when`."""
        if process.turn_at is not None and process.turn_at <= when:
            return
        process.turn_at = when + self._rng.random() * _STEP_S
        heapq.heappush(self._agenda, (process.turn_at, next(self._order), process))

    def _turn(self, process: Process) -> None:
        process.turn_at = None
        self.turns += 1
        while process.timers and process.timers[0][0] <= self._now:
            process.ready.append(heapq.heappop(process.timers)[2])
        try:
            for _ in range(len(process.ready)):
                if not self._buried:
                    process.moment("step")
                handle = process.ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if process.silent:
                    return
        except Killed:
            return
        if process.ready:
            self._plan(process, self._now)
        elif process.timers:
            self._plan(process, process.timers[0][0])


def current_process() -> Process:
    """The process whose callback runs."""
    return _OWNER.get()
