"""`steelyard up`: start the stack here, or in a process of its own (`python -m app.stack.up OPTIONS`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from app.core.clock import SystemClock
from app.core.errors import DependencyError
from app.stack.addresses import Addresses
from app.stack.board import Row
from app.stack.data_dir import Credentials, DataDir, cache_folder
from app.stack.program import log_path, open_log, our_environment, own_command, python
from app.stack.run import run
from app.stack.screen import Screen, screen_for, summary
from app.stack.services import Stack

_POLL_S = 0.1
_INTERRUPTED = 130
"""The shell's exit code of a command that Ctrl-C ended (128 + SIGINT)."""


@dataclass(frozen=True)
class UpOptions:
    """How to start.   engine_url: an engine of the user's own instead of the embedded one.

    ephemeral: keep nothing; the data folder is a temporary one.   as_json: one object on standard output.
    """

    data_dir: Path = Path(".steelyard")
    port: int = 8080
    gateways: int = 2
    engine_url: str | None = None
    detach: bool = False
    ephemeral: bool = False
    as_json: bool = False


def up(options: UpOptions) -> int:
    """Start the stack and, unless detached, stay until it is told to stop. Raises DependencyError."""
    if options.ephemeral:
        options = replace(options, data_dir=Path(tempfile.mkdtemp(prefix="steelyard-")))
    options = replace(options, data_dir=options.data_dir.absolute())
    return _start_detached(options) if options.detach else _stay(options)


def service_object(row: Row) -> dict[str, Any]:
    """One service as programs see it."""
    return {
        "name": row.name,
        "state": row.state.value,
        "pid": row.pid or None,
        "seconds": row.took_s(row.ready_ms) if row.ready_ms else None,
        "restarts": row.restarts,
        "detail": row.detail,
    }


def _stay(options: UpOptions, *, announce: bool = True) -> int:
    """Run the stack in this process until it is told to stop; it is gone when this returns.

    announce: False where our output is a log: it must not hold the key and the password.
    """
    clock = SystemClock()
    data = DataDir(options.data_dir)
    addresses = Addresses(options.port, options.gateways)
    stack = Stack(data, cache_folder(data), addresses, engine_url=options.engine_url)
    try:
        screen = screen_for(_words(options), clock)
        tell = partial(_announce, options) if announce else _say_nothing
        run(stack, screen=screen, clock=clock, on_ready=tell)
    finally:
        if options.ephemeral:
            stack.remove()
    return 0


def _start_detached(options: UpOptions) -> int:
    """Start the stack in a process of its own and return once it is ready; it stays."""
    clock = SystemClock()
    data = DataDir(options.data_dir)
    data.make()
    with data.locked():
        pass  # raises if a stack already runs
    begun_ms = clock.now_ms()
    with open_log(data.logs, "supervisor") as log:
        written = log_path(data.logs, "supervisor").open("rb")  # outlives an ephemeral folder
        written.seek(log.tell())
        process = subprocess.Popen(
            python("app.stack.up", _encode(replace(options, detach=False, as_json=False))),
            env=our_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with written, _closing(screen_for(_words(options), clock)) as screen:
        try:
            _follow(process, data, screen=screen)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return _INTERRUPTED
        words = written.read().decode(errors="replace")
    if process.poll() is not None:
        raise DependencyError(words.rpartition("error: ")[2].strip() or "the stack ended at once")
    _announce(options, (clock.now_ms() - begun_ms) / 1000)
    return 0


def _follow(process: subprocess.Popen[bytes], data: DataDir, *, screen: Screen) -> None:
    """Show what the process writes down of its start; returns when it is ready or has ended."""
    while process.poll() is None:
        state = data.read_state()
        if state is not None and state.pid == process.pid:
            screen.show(state.rows)
            if state.phase == "ready":
                return
        time.sleep(_POLL_S)


def _say_nothing(took_s: float) -> None:
    """The announcement of a process whose output is a log."""


def _announce(options: UpOptions, took_s: float) -> None:
    data = DataDir(options.data_dir)
    credentials = data.read_credentials()
    if credentials is None:
        raise DependencyError(f"{data.credentials_file} is gone: start again")
    if options.as_json:
        print(msgspec.json.encode(_up_object(data, credentials)).decode(), flush=True)
    else:
        stays, command = options.detach, own_command()
        text = summary(credentials, took_s=took_s, data_dir=str(data.root), stays=stays, command=command)
        print(text, flush=True)


def _up_object(data: DataDir, credentials: Credentials) -> dict[str, Any]:
    state = data.read_state()
    return {
        "gateway_url": credentials.gateway_url,
        "console_url": credentials.control_url,
        "api_key": credentials.api_key,
        "model": credentials.model,
        "admin_email": credentials.admin_email,
        "admin_password": credentials.admin_password,
        "data_dir": str(data.root),
        "services": [service_object(row) for row in (state.rows if state else [])],
    }


def _words(options: UpOptions) -> Any:
    """Where people read: never standard output when a program reads that."""
    return sys.stderr if options.as_json else sys.stdout


@contextmanager
def _closing(screen: Screen) -> Iterator[Screen]:
    try:
        yield screen
    finally:
        screen.close()


def _encode(options: UpOptions) -> str:
    return msgspec.json.encode(asdict(options), enc_hook=str).decode()


def _decode(text: str) -> UpOptions:
    return msgspec.json.decode(text, type=UpOptions, dec_hook=lambda kind, value: kind(value))


def main(arguments: list[str]) -> int:
    try:
        return _stay(_decode(arguments[0]), announce=False)
    except DependencyError as error:
        print(f"error: {error.public_message}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
