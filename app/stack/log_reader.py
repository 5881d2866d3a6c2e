"""Follows several log files at once, as `tail -F` does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.stack.program import log_path

_POLL_S = 0.2


@dataclass
class LogTail:
    """Reads what is appended to a file from `position` on; begins anew when the file is replaced."""

    path: Path
    position: int

    @classmethod
    def at_end(cls, path: Path) -> LogTail:
        return cls(path, path.stat().st_size if path.exists() else 0)

    def new_lines(self) -> list[str]:
        """The whole lines that came since the last call."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self.position:
            self.position = 0
        with self.path.open("rb") as file:
            file.seek(self.position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.position += len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines() if newline else []


def follow_logs(folder: Path, names: Sequence[str], *, labelled: bool) -> None:
    """Print new lines of the logs as they come, until interrupted."""
    tails = {name: LogTail.at_end(log_path(folder, name)) for name in names}
    with suppress(KeyboardInterrupt):
        while True:
            _print_new(tails, labelled=labelled)
            time.sleep(_POLL_S)


def _print_new(tails: Mapping[str, LogTail], *, labelled: bool) -> None:
    for name, tail in tails.items():
        for line in tail.new_lines():
            print(f"{name} | {line}" if labelled else line, flush=True)
