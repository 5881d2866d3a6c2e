"""Which process is which: a pid together with its birth names one process for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_START_TIME = 19
"""Field 22 of /proc/PID/stat, counted from the state that follows the name (proc(5))."""


def birth_of(pid: int) -> int:
    """The kernel's start time of a process in clock ticks since boot; 0 if it is gone or can't be known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, *_ = fields = stat.rpartition(")")[2].split()
    return 0 if state == "Z" else int(fields[_START_TIME])


def is_alive(pid: int, birth: int) -> bool:
    """True if exactly the process that was born then still runs."""
    return birth > 0 and birth_of(pid) == birth


def end_leftovers(processes: Iterable[tuple[int, int]], *, patience_s: float = 12.0) -> int:
    """End those (pid, birth) that outlived their supervisor: kindly, then by force. Returns how many."""
    left = [(pid, birth) for pid, birth in processes if is_alive(pid, birth)]
    for pid, _ in left:
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while any(is_alive(*one) for one in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, birth in left:
        if is_alive(pid, birth):
            _signal(pid, signal.SIGKILL)
    return len(left)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
