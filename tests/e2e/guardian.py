"""`python -m tests.e2e.guardian FOLDER`: at the end of our standard input, stop and remove the stacks in it.

A detached stack outlives whoever started it: that is its point. A test run that is killed can't stop it,
but its end of our pipe is closed by the kernel, whatever killed it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.stack import commands

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Until the end of the block a process watches over us: if we die, it ends the stacks below `folder`.

    The folder and its stacks are gone when this returns, too.
    """
    command = [sys.executable, "-m", "tests.e2e.guardian", str(folder)]
    quiet = subprocess.DEVNULL
    # At the end of the block it closes the pipe and waits.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=quiet, start_new_session=True):
        yield


def end(folder: Path) -> None:
    """Stop every stack whose data lie in a folder of `folder`, and remove it."""
    for lock in folder.glob("*/lock"):
        commands.down(lock.parent)
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: str) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.read()
    end(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
