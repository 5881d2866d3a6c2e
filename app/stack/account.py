"""The account under which a server runs that refuses to be root, and what that account can reach.

Three cases: we are an ordinary user and stay so; we are root and become `nobody`; we are a root that
may not change users (some containers) and enter a user namespace in which root is called `nobody`.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from app.stack.child import die_with_parent

_CLONE_NEWUSER = 0x1000_0000
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


class PopenArguments(TypedDict, total=False):
    """The part of `Popen`'s arguments that says who the child is."""

    user: int
    group: int
    extra_groups: list[int]
    preexec_fn: Callable[[], None]
    cwd: str


@dataclass(frozen=True)
class Account:
    """Who an unprivileged child is.   uid, gid: as seen by the file system outside of it."""

    kind: Literal["same", "other", "namespace"]
    uid: int
    gid: int

    def arguments(self, death_signal: signal.Signals = signal.SIGTERM) -> PopenArguments:
        """Keyword arguments for `Popen` that make the child this account and bind its life to ours."""
        die = die_with_parent(death_signal)
        if self.kind == "other":
            return {"user": self.uid, "group": self.gid, "extra_groups": [], "preexec_fn": die, "cwd": "/"}
        if self.kind == "namespace":
            return {"preexec_fn": _entering_namespace(die), "cwd": "/"}
        return {"preexec_fn": die}

    def reaches(self, path: Path) -> bool:
        """True if this account may enter (or execute) `path`, every folder above it included."""
        test = ["/bin/sh", "-c", 'test -x "$0"', str(path)]
        return subprocess.run(test, check=False, **self.arguments()).returncode == 0

    def give(self, path: Path) -> None:
        """Make this account the owner of `path`."""
        if self.kind == "other":
            os.chown(path, self.uid, self.gid)


def myself() -> Account:
    """The account of this process."""
    return Account("same", os.geteuid(), os.getegid())


def unprivileged() -> Account:
    """The account for servers that refuse root; our own unless we are root."""
    if os.geteuid() != 0:
        return myself()
    other = _account_of_nobody()
    try:
        subprocess.run(["/bin/true"], check=True, **other.arguments())
    except (OSError, subprocess.SubprocessError):
        return Account("namespace", 0, 0)
    return other


def _account_of_nobody() -> Account:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account("other", _NOBODY, _NOBODY)
    return Account("other", entry.pw_uid, entry.pw_gid)


def _entering_namespace(then: Callable[[], None]) -> Callable[[], None]:
    def before_exec() -> None:
        _enter_namespace()
        then()

    return before_exec


def _enter_namespace() -> None:
    """Between fork and exec: call the root of this process `nobody`. Raises OSError if forbidden."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed here")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{_NOBODY} {gid} 1")
