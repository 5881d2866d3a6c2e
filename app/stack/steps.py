"""Steps that are commands: run to their end once, with progress read from what they print."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.core.errors import DependencyError
from app.stack.board import Progress, Report
from app.stack.program import last_lines, log_path, open_log, start
from app.stack.supervisor import ended_how, kill_group

_POLL_S = 0.05


async def run_to_end(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    logs: Path,
    name: str,
    report: Report | None = None,
) -> str:
    """What a command printed, once it has ended well. Raises DependencyError with its last words.

    report: if given, its lines `DONE TOTAL what` are reported as they come. Cancelling ends the command.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    output = ""
    with open_log(logs, name) as log:
        begun = log.tell()
        process = start(arguments, environment=environment, output=writing, errors=log)
    os.close(writing)
    try:
        while True:
            ended = process.poll() is not None
            output += _available(reading)
            if ended:
                break
            _report_last_line(output, report)
            await asyncio.sleep(_POLL_S)
    finally:
        os.close(reading)
        kill_group(process)
        process.wait()
    if process.returncode != 0:
        words = last_lines(log_path(logs, name)) if log_path(logs, name).stat().st_size > begun else output
        raise DependencyError(words.strip() or f"{name} {ended_how(process)}")
    return output


def _available(descriptor: int) -> str:
    """All that can be read now without waiting."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode(errors="replace")


def _report_last_line(output: str, report: Report | None) -> None:
    if report is None:
        return
    last_whole_line = output.rpartition("\n")[0].rpartition("\n")[2]
    done, _, rest = last_whole_line.partition(" ")
    total, _, detail = rest.partition(" ")
    if done.isdigit() and total.isdigit():
        report(Progress(int(done), int(total), detail))
