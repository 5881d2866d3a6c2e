"""Programs that can be started and asked whether they are ready, and the logs that they write to."""

from __future__ import annotations

import http.client
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Protocol

import app
from app.stack.account import myself

SOURCE_ROOT = Path(app.__file__).parents[1]
"""The folder in which Python finds our packages; children get it as PYTHONPATH."""
_LOG_LIMIT = 10 * 1024 * 1024


def own_command() -> str:
    """What people here type for `steelyard`: the name if their shell finds it, else the path."""
    installed = SOURCE_ROOT / ".venv" / "bin" / "steelyard"
    if shutil.which("steelyard") or not installed.exists():
        return "steelyard"
    here = Path.cwd()
    return shlex.quote(str(installed.relative_to(here) if installed.is_relative_to(here) else installed))


class Program(Protocol):
    """Something the supervisor keeps running."""

    @property
    def stop_signal(self) -> Signals: ...

    def prepare(self) -> None:
        """Make what a start needs; may take seconds, is called off the loop, before every start."""
        ...

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it without waiting, as the leader of a new session."""
        ...

    def is_ready(self) -> bool:
        """True once it does its work. May block for a second; is called off the loop."""
        ...


@dataclass(frozen=True)
class Command:
    """A program given by its command line.   probe: answers whether it is ready."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    probe: Callable[[], bool]
    stop_signal: Signals = SIGTERM

    def prepare(self) -> None:
        pass

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return start(self.arguments, environment=self.environment, output=log, errors=log)

    def is_ready(self) -> bool:
        return self.probe()


def start(
    arguments: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes] | int, errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """A child in a session of its own that ends when we end, however we end."""
    return subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        **myself().arguments(),
    )


def our_environment() -> dict[str, str]:
    """The environment for a Python process of ours: it finds our packages, and keeps what it compiles.

    Without kept bytecode each of our processes compiles its libraries anew: three times the start.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, [str(SOURCE_ROOT), kept.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def python(*arguments: str) -> list[str]:
    """The command line of a Python module of ours."""
    return [sys.executable, "-m", *arguments]


def answers_health(port: int, *, path: str = "/health", host: str = "127.0.0.1") -> bool:
    """True if a GET of `path` is answered with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def open_log(folder: Path, name: str) -> IO[bytes]:
    """The log of a service, opened for appending; one that grew beyond 10 MiB is put aside as `.log.1`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = log_path(folder, name)
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def last_lines(path: Path, count: int = 12) -> str:
    """The end of a text file; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return ""
