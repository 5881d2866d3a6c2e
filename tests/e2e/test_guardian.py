"""A test run that is killed leaves no stack behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.stack.account import myself
from app.stack.data_dir import DataDir
from tests.e2e.guardian import ROOT
from tests.e2e.stack import eventually

HOLD = """
import os, signal, sys
from pathlib import Path
from app.stack.data_dir import DataDir
data = DataDir(Path(sys.argv[1])); data.make()
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with data.locked():
    print("holds", flush=True)
    signal.pause()
"""
RUN = """
import sys
from pathlib import Path
from tests.e2e.guardian import guarded
with guarded(Path(sys.argv[1])):
    print("guarded", flush=True)
    sys.stdin.read()
"""


def _python(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **myself().arguments(signal.SIGKILL),
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_what_a_killed_run_had_started_is_stopped_and_removed(end: signal.Signals | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="sy-guard-"))
    with _python(HOLD, folder / "data") as stack, _python(RUN, folder) as run:
        assert stack.stdout is not None
        assert run.stdout is not None
        assert (stack.stdout.readline(), run.stdout.readline()) == ("holds\n", "guarded\n")
        assert DataDir(folder / "data").holder() == stack.pid
        if end is not None:
            run.send_signal(end)
        run.communicate()
        assert stack.wait() == 0
        eventually(lambda: not folder.exists(), within_s=30)
