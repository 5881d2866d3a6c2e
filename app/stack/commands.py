"""`up`, `down`, `status`, `doctor` and `logs` as functions that return an exit code.

The command line that calls them is elsewhere. A failure is printed in words, with what to do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import msgspec

from app.core.clock import SystemClock
from app.core.errors import DependencyError
from app.stack import up as starting
from app.stack.board import State
from app.stack.data_dir import DataDir, StackState
from app.stack.process_table import birth_of, is_alive
from app.stack.program import last_lines, log_path
from app.stack.screen import print_rows
from app.stack.up import UpOptions, service_object

__all__ = ["UpOptions", "doctor", "down", "logs", "status", "up"]

_STOP_PATIENCE_S = 60.0
_POLL_S = 0.1
_Given = ParamSpec("_Given")


def _says_why(command: Callable[_Given, int]) -> Callable[_Given, int]:
    """`command`, with an expected failure printed and turned into exit code 1."""

    @wraps(command)
    def saying_why(*arguments: _Given.args, **named: _Given.kwargs) -> int:
        try:
            return command(*arguments, **named)
        except DependencyError as error:
            print(f"error: {error.public_message}", file=sys.stderr)
            return 1

    return saying_why


@_says_why
def up(options: UpOptions) -> int:
    """Start the stack and, unless detached, stay until it is told to stop."""
    return starting.up(options)


@_says_why
def down(data_dir: Path) -> int:
    """Stop the stack of a folder and wait until it has stopped. Nothing running is no failure."""
    data = DataDir(data_dir.absolute())
    pid = data.holder()
    if pid is None:
        print(f"nothing runs on {data.root}")
        return 0
    begun, birth = time.monotonic(), birth_of(pid)
    os.kill(pid, signal.SIGTERM)
    while data.holder() == pid or is_alive(pid, birth):
        if time.monotonic() - begun > _STOP_PATIENCE_S:
            print(f"error: process {pid} does not stop; look into {data.logs}", file=sys.stderr)
            return 1
        time.sleep(_POLL_S)
    left = f"the data stay in {data.root}" if data.root.exists() else "nothing stays"
    print(f"stopped after {time.monotonic() - begun:.1f} s; {left}")
    return 0


@_says_why
def status(data_dir: Path, *, as_json: bool = False) -> int:
    """Show each service; 0 if all is ready, else 1."""
    data = DataDir(data_dir.absolute())
    state, running = data.read_state(), data.holder() is not None
    if as_json:
        print(msgspec.json.encode(_status_object(data, state, running=running)).decode())
    elif state is None:
        print(f"no stack was ever started on {data.root}; start one: steelyard up")
    else:
        _print_status(data, state, running=running)
    return 0 if running and state is not None and state.phase == "ready" and not _unwell(state) else 1


@_says_why
def doctor(data_dir: Path, *, as_json: bool = False) -> int:
    """Print what keeps the stack from running, with a fix for each; 0 if nothing does. Changes nothing."""
    from app.stack.doctor import examine

    findings = examine(DataDir(data_dir.absolute()))
    if as_json:
        print(msgspec.json.encode({"findings": findings}).decode())
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'BAD '} {finding.what:<12} {finding.detail}")
            if not finding.ok:
                print(f"     try: {finding.fix}")
    return 0 if all(finding.ok for finding in findings) else 1


@_says_why
def logs(data_dir: Path, *, service: str | None = None, follow: bool = False, lines: int = 50) -> int:
    """Print the last lines of one service's log, or of all, and go on if asked to."""
    from app.stack.log_reader import follow_logs

    data = DataDir(data_dir.absolute())
    known = sorted(path.stem for path in data.logs.glob("*.log"))
    if service is not None and service not in known:
        names = ", ".join(known) or "none yet"
        print(f"error: there is no log of {service}; there are: {names}", file=sys.stderr)
        return 1
    chosen = known if service is None else [service]
    for name in chosen:
        if text := last_lines(log_path(data.logs, name), lines):
            print("\n".join(f"{name} | {line}" if service is None else line for line in text.splitlines()))
    if follow:
        follow_logs(data.logs, chosen, labelled=service is None)
    return 0


def _status_object(data: DataDir, state: StackState | None, *, running: bool) -> dict[str, Any]:
    return {
        "running": running,
        "phase": state.phase if state and running else "stopped",
        "data_dir": str(data.root),
        "gateway_url": state.gateway_url if state else None,
        "console_url": state.console_url if state else None,
        "error": state.error if state else "",
        "services": [service_object(row) for row in (state.rows if state else [])],
    }


def _print_status(data: DataDir, state: StackState, *, running: bool) -> None:
    print_rows(state.rows, now_ms=SystemClock().now_ms())
    if running:
        print(f"{state.phase}   gateway {state.gateway_url}   console {state.console_url}   data {data.root}")
    elif state.error:
        print(f"not running; the last start failed: {state.error}")
    else:
        print("not running; start it: steelyard up")


def _unwell(state: StackState) -> bool:
    return any(row.state not in (State.READY, State.DONE) for row in state.rows)
