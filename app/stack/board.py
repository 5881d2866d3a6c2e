"""What is known of each service right now: the one thing that screen, state file and tests look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Row(msgspec.Struct):
    """One service or step.

    started_ms, ready_ms: Unix times, 0 while unknown.   done, total: bytes of a download; total 0: none.
    birth: the kernel's start time of `pid`, so that a reused pid is never taken for ours.
    """

    name: str
    state: State = State.WAITING
    pid: int = 0
    birth: int = 0
    started_ms: int = 0
    ready_ms: int = 0
    restarts: int = 0
    detail: str = ""
    done: int = 0
    total: int = 0

    def took_s(self, now_ms: int) -> float:
        """Seconds from its start until it was ready, or until now."""
        return ((self.ready_ms or now_ms) - self.started_ms) / 1000 if self.started_ms else 0.0


class Progress(NamedTuple):
    """How far a step is, in bytes, and what it is doing.   total 0: there is nothing to count."""

    done: int
    total: int
    what: str


Report = Callable[[Progress], None]
"""Called by a step whenever it got further."""


class Board:
    """The rows, in the order of the plan. `version` grows with every change."""

    def __init__(self, names: Iterable[str]) -> None:
        self._rows = {name: Row(name) for name in names}
        self.version = 0

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def change(self, name: str, **fields: object) -> None:
        row = self._rows[name]
        for field, value in fields.items():
            setattr(row, field, value)
        self.version += 1
