"""Children that can't outlive us: the kernel signals them when the thread that made them ends."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
"""Loaded before any fork: a child between fork and exec must not import anything."""


def die_with_parent(death_signal: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn` after which the child gets `death_signal` when its parent ends, by whatever means.

    The kernel watches the *thread* that forked, so start children from a thread that stays. A change
    of user clears the wish; `Popen` changes it before it calls this. Elsewhere than Linux it does nothing.
    """

    def before_exec() -> None:
        if sys.platform == "linux":
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)

    return before_exec
