"""What a person sees while the stack starts and stops: one live table, or plain lines without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.core.clock import Clock
from app.stack.board import Row, State
from app.stack.data_dir import Credentials

_STYLES = {
    State.WAITING: "dim",
    State.STARTING: "yellow",
    State.READY: "green",
    State.DONE: "green",
    State.RESTARTING: "red",
    State.STOPPING: "yellow",
    State.STOPPED: "dim",
    State.FAILED: "bold red",
}
_MIB = 1 << 20
QUESTION = "What is the capital of France?"


class Screen(Protocol):
    def show(self, rows: Sequence[Row]) -> None:
        """Show the rows as they are now."""
        ...

    def close(self) -> None:
        """Leave what was shown last, and the terminal as it was."""
        ...


class LiveScreen:
    """Redraws one table on a terminal."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._clock = clock
        console = Console(file=stream)
        # No thread of its own: children must be started from the only thread (see `child`).
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, rows: Sequence[Row]) -> None:
        self._live.update(_table(rows, self._clock.now_ms()), refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainScreen:
    """Prints a line whenever a service's state changes.   known: rows that need no line."""

    def __init__(self, stream: TextIO, clock: Clock, *, known: Sequence[Row] = ()) -> None:
        self._stream = stream
        self._clock = clock
        self._known = {row.name: (row.state, row.detail) for row in known}

    def show(self, rows: Sequence[Row]) -> None:
        for row in rows:
            now = (row.state, row.detail)
            if row.state is not State.WAITING and self._known.get(row.name) != now:
                self._known[row.name] = now
                print(self._line(row), file=self._stream, flush=True)

    def close(self) -> None:
        pass

    def _line(self, row: Row) -> str:
        took_s = row.took_s(self._clock.now_ms())
        return f"{row.name:<12} {row.state.value:<10} {took_s:5.1f} s  {row.detail}".rstrip()


def screen_for(stream: TextIO, clock: Clock) -> Screen:
    """A live screen on a terminal, else plain lines."""
    return LiveScreen(stream, clock) if stream.isatty() else PlainScreen(stream, clock)


def summary(
    credentials: Credentials, *, took_s: float, data_dir: str, stays: bool, command: str = "steelyard"
) -> str:
    """What a person needs once all is ready: addresses, login, key, and a call that works as printed.

    stays: whether the stack goes on without this command.   command: how its user calls ours.
    """
    json = "Content-Type: application/json"
    message = f'{{"role": "user", "content": "{QUESTION}"}}'
    body = f'{{"model": "{credentials.model}", "messages": [{message}], "temperature": 0, "max_tokens": 64}}'
    url, key = credentials.gateway_url, credentials.api_key
    stop = f"{command} down --data-dir '{data_dir}'" if stays else "Ctrl-C"
    return f"""
Steelyard is ready after {took_s:.1f} s. Its data: {data_dir}. Stop it: {stop}

  Gateway   {url}/v1
  Console   {credentials.control_url}
  Login     {credentials.admin_email}   {credentials.admin_password}
  API key   {key}   (tenant Demo, prepaid)

Try:
curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H '{json}' -d '{body}'
"""


def print_rows(rows: Sequence[Row], *, now_ms: int, stream: TextIO | None = None) -> None:
    """Print the table once."""
    Console(file=stream or sys.stdout).print(_table(rows, now_ms))


def _table(rows: Sequence[Row], now_ms: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("service", min_width=12)
    table.add_column("state", min_width=10)
    table.add_column("time", justify="right", min_width=7)
    table.add_column("", ratio=1)
    for row in rows:
        took = f"{row.took_s(now_ms):.1f} s" if row.started_ms else ""
        table.add_row(row.name, Text(row.state.value, style=_STYLES[row.state]), took, _detail(row))
    return Group(table)


def _detail(row: Row) -> RenderableType:
    if not row.total:
        restarted = f"restarted {row.restarts}×" if row.restarts and row.state is State.READY else ""
        return Text(row.detail or restarted, overflow="ellipsis", no_wrap=True)
    line = Table.grid(padding=(0, 1))
    amount = f"{row.done / _MIB:.0f}/{row.total / _MIB:.0f} MiB"
    line.add_row(ProgressBar(total=row.total, completed=row.done, width=24), amount, row.detail)
    return line
