"""A whole stack as a user starts it: the command line in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300
_PORTS = 32
T = TypeVar("T")


@dataclass(frozen=True)
class Steelyard:
    """Runs the command line.   wrapper: words before it, to run it as somebody else."""

    folder: Path
    wrapper: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEELYARD_")}
        return subprocess.run(
            [*self.wrapper, sys.executable, "-m", "app.cli.main", *arguments],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(ROOT), **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def read(self, *arguments: str) -> Any:
        """What a command that must succeed prints with `--json`."""
        outcome = self(*arguments, "--json")
        assert outcome.returncode == 0, outcome.stderr
        return json.loads(outcome.stdout)


@dataclass(frozen=True)
class Stack:
    """A running stack.   facts: what `up --json` printed."""

    steelyard: Steelyard
    facts: dict[str, Any]

    @property
    def data_dir(self) -> str:
        return str(self.facts["data_dir"])

    def read(self, *arguments: str) -> Any:
        """The answer of a command to this stack."""
        return self.steelyard.read(*arguments, "--data-dir", self.data_dir)


def free_port() -> int:
    """The first of a run of ports that are all free now."""
    for base in range(21000, 32000, _PORTS):
        if all(_is_free(port) for port in range(base, base + _PORTS)):
            return base
    raise AssertionError("no run of free ports on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def eventually(look: Callable[[], T | None], *, within_s: float = 15) -> T:
    """What `look` finds, asked again until it finds something. Fails if it never does."""
    pause = threading.Event()
    for _ in range(int(within_s / 0.1)):
        if found := look():
            return found
        pause.wait(0.1)
    raise AssertionError(f"nothing within {within_s} s")
