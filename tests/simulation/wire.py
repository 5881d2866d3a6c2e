"""The way from a process to the database: late, lost, cut; with moments to die around each statement.

process ──(latency)──▶ statement, in place ──(latency)──▶ answer
                dies: not done               dies: done, and nobody was told
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from tests.simulation.arena import Arena, Asking
from tests.simulation.loop import Killed, Process, SimLoop
from tests.simulation.trace import Trace

_GUARDED = frozenset(
    {"commit", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval", "rollback", "start"}
)
"""Coroutines of statements and transactions that don't look like some."""
_ONCE = frozenset({"prepare", "set_builtin_type_codec", "set_type_codec"})
_DONE: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
_MAKES = frozenset({"transaction"})
_GONE = "connection was closed in the middle of operation"


class Network:
    """Between all processes and the database.

    away: nobody gets through.   slow: share of late answers.   over: the run has ended.
    delivers: what a process sent before its death arrives, instead of half of it.
    """

    def __init__(
        self,
        loop: SimLoop,
        arena: Arena,
        *,
        rng: Random,
        trace: Trace,
        on_change: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.arena = arena
        self.rng = rng
        self.trace = trace
        self.on_change = on_change
        self.away = False
        self.slow = 0.0
        self.delivers = False
        self.open: list[Wired] = []
        self.asked = 0
        self.over = False

    async def connect(self, process: Process) -> Wired:
        """A new connection of a process. Raises OSError while the database is away."""
        process.moment("call")
        await asyncio.sleep(self.latency())
        if self.away:
            raise ConnectionRefusedError("the database is away")
        wired = Wired(self, process, self.arena.connect())
        self.open.append(wired)
        process.moment("called")
        return wired

    def tell(self, process: Process, channel: str, news: str) -> None:
        """Send a notification to a process' connections that listen."""
        for wired in self.open:
            if wired.process is process:
                wired.hear(channel, news)

    def end_listening(self, process: Process) -> None:
        """A process' connections that listen break."""
        for wired in [each for each in self.open if each.process is process and each.listens]:
            wired.drop()

    def latency(self) -> float:
        """One way, in seconds: mostly short, at times longer than anybody waits."""
        if self.slow and self.rng.random() < self.slow:
            return self.rng.choice((0.05, 0.3, 1.2))
        return self.rng.random() * 0.002

    def cut(self, process: Process) -> None:
        """The process is dead: the server sees its connections close."""
        for wired in [each for each in self.open if each.process is process]:
            wired.drop()

    def go_away(self) -> None:
        """The server stops: every session is rolled back, nobody gets through."""
        self.away = True
        for wired in list(self.open):
            wired.drop(at_once=True)

    def come_back(self) -> None:
        self.away = False

    def perform(self, wired: Wired, act: Callable[[], Any], *, name: str) -> Asking:
        """Do it now, and let the world know what it changed."""
        self.asked += 1
        self.arena.set_clock(self.loop.time())
        asking = self.arena.ask(wired.real, act)
        if asking.task.done():
            self.settled(name)
        return asking

    def settled(self, name: str) -> None:
        """A statement is answered: others may have got their locks; a commit may have changed something."""
        if name in ("commit", "fetchval", "drop"):
            self.arena.settle_waiting()
            self.on_change()


class Wired:
    """A connection as its process has it; stands for asyncpg's. What it makes is wired as well."""

    def __init__(self, network: Network, process: Process, real: Any) -> None:
        self.real = real
        self.process = process
        self._network = network
        self._cut = False
        self._returned = False
        self._late = 0
        self._flight: tuple[float, str, Callable[[], Any]] | None = None
        self._asking: Asking | None = None
        self._listeners: list[Callable[..., object]] = []
        self._mourners: list[Callable[..., object]] = []
        self._hears_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return reach(self, self.real, name)

    @property
    def listens(self) -> bool:
        return bool(self._listeners)

    async def add_listener(self, channel: str, callback: Callable[..., object]) -> None:
        """Hear of what is committed from now on."""

        async def listen() -> None:
            self._listeners.append(callback)

        await self.call("listen", listen)

    def add_termination_listener(self, callback: Callable[..., object]) -> None:
        self._mourners.append(callback)

    def add_log_listener(self, callback: Callable[..., object]) -> None:
        """Nobody listens: what the server warns of is of no interest."""

    def hear(self, channel: str, news: str) -> None:
        """A notification is sent; it arrives behind those before it."""
        network = self._network
        if self._listeners:
            self._hears_at = max(self._hears_at, network.loop.time()) + network.rng.random() * 0.002
            delay_s = self._hears_at - network.loop.time()
            self.process.post_later(delay_s, self._heard, channel, news)

    def _heard(self, channel: str, news: str) -> None:
        if not self._cut:
            for callback in self._listeners:
                callback(self, 0, channel, news)

    def is_closed(self) -> bool:
        return self._cut

    def terminate(self) -> None:
        self.drop()

    async def close(self, *, timeout: float | None = None) -> None:
        self.drop()

    def drop(self, *, at_once: bool = False) -> None:
        """Close it from either side. What is under way is still done, unless the server itself stops."""
        if self._cut:
            return
        self._cut = True
        self._network.open.remove(self)
        if not self.process.dead:
            for mourner in self._mourners:
                self.process.post(mourner, self)
        if self._asking is not None and at_once:
            self._network.arena.break_off(self._asking)
        flight, self._flight = self._flight, None
        if flight is not None and not at_once:
            self._leave_behind(*flight)
        self._give_back()

    def _leave_behind(self, arrives: float, name: str, act: Callable[[], Any]) -> None:
        """A message that its sender will not hear of any more. It may still arrive."""
        network = self._network
        if not network.over and (network.rng.random() < 0.5 or network.delivers):
            self._late += 1
            delay_s = max(arrives - network.loop.time(), 0)
            network.loop.world.post_later(delay_s, self._arrive, name, act)

    async def call(self, name: str, act: Callable[[], Any]) -> Any:
        """One statement and its answer."""
        network, process = self._network, self.process
        self._check()
        process.moment("call")
        await self._travel(name, act)
        self._check()
        asking = network.perform(self, act, name=name)
        if not asking.task.done():
            await self._wait_for_lock(asking, name)
        else:
            asking.task.exception()
        network.trace.note(process.name, "asked", name, _outcome(asking.task))
        process.moment("called")
        await asyncio.sleep(network.latency())
        self._check()
        return asking.task.result()

    async def _travel(self, name: str, act: Callable[[], Any]) -> None:
        """The way to the server."""
        delay_s = self._network.latency()
        self._flight = (self._network.loop.time() + delay_s, name, act)
        self.process.moment("sent")
        await asyncio.sleep(delay_s)
        self._flight = None

    def _arrive(self, name: str, act: Callable[[], Any]) -> None:
        """A message that nobody waits for any more."""
        self._late -= 1
        if not self._network.away and not self.real.is_closed() and self._asking is None:
            asking = self._network.perform(self, act, name=name)
            self._network.trace.note(self.process.name, "late", name)
            if not asking.task.done():
                self._asking = asking
                asking.answered = self._answered_late
                return
            asking.task.exception()
        self._give_back()

    def _answered_late(self) -> None:
        assert self._asking is not None
        self._asking.task.exception()
        self._asking = None
        self._give_back()

    async def _wait_for_lock(self, asking: Asking, name: str) -> None:
        future: asyncio.Future[None] = self._network.loop.create_future()
        self._asking = asking

        def answered() -> None:
            self._asking = None
            asking.task.exception()
            self._network.settled(name)
            self._give_back()
            if not future.done():
                future.set_result(None)

        asking.answered = answered
        self._network.trace.note(self.process.name, "blocked", name)
        await future

    def _give_back(self) -> None:
        """Give the session back once it is closed and nothing is on its way in it any more."""
        if self._cut and not self._returned and not self._late and self._asking is None:
            self._returned = True
            self._network.arena.take_back(self.real)
            self._network.settled("drop")

    def _check(self) -> None:
        if self.process.dead:
            raise Killed
        if self._cut:
            raise asyncpg.ConnectionDoesNotExistError(_GONE)


class _Made:
    """A prepared statement or transaction of a wired connection."""

    def __init__(self, wired: Wired, real: Any) -> None:
        self._wired = wired
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return reach(self._wired, self._real, name)

    async def __aenter__(self) -> None:
        await self._wired.call("start", self._real.start)

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            await self._wired.call("commit", self._real.commit)
        else:
            await self._wired.call("rollback", self._real.rollback)


def reach(wired: Wired, real: Any, name: str) -> Any:
    """An attribute of a real connection or statement, asked over the wire where it asks the server."""
    attribute = getattr(real, name)
    if name in _MAKES:
        return lambda *args, **named: _Made(wired, attribute(*args, **named))
    if name not in _GUARDED and not iscoroutinefunction(attribute):
        return attribute

    async def ask(*args: Any, **named: Any) -> Any:
        if name in _ONCE:
            result = await wired.call(name, lambda: _once(real, name, args, named))
        else:
            result = await wired.call(name, lambda: attribute(*args, **named))
        return _Made(wired, result) if name == "prepare" else result

    return ask


async def _once(real: Any, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What has no effect but on the session itself is done once in it: sessions are used again."""
    done: dict[Any, Any] = _DONE.setdefault(real, {})
    key = (name, args[0])
    if key not in done:
        done[key] = await getattr(real, name)(*args, **named)
    return done[key]


def _outcome(task: asyncio.Future[Any]) -> str:
    error = task.exception()
    return "ok" if error is None else f"{type(error).__name__}: {error}"


class SimPool:
    """As much of asyncpg's pool as the data plane uses."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def acquire(self, *, timeout: float | None = None) -> Wired:
        async with asyncio.timeout(timeout):
            return await self._network.connect(self._process)

    async def release(self, connection: Wired) -> None:
        connection.drop()

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        connection = await self.acquire()
        try:
            return await connection.fetchrow(query, *arguments)
        finally:
            connection.drop()
