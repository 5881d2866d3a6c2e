"""A stack of an ordinary user, under a path with spaces, as people read it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.guardian import guarded
from tests.e2e.stack import ROOT, START_TIMEOUT_S, Steelyard, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

NOBODY = 65534


def _as_ordinary_user() -> Sequence[str]:
    """Words that make a command an ordinary user's; none if we are one already.

    `nobody`, if it can run our Python; else a user namespace in which we are user 1000 without any
    capability, as a Python in root's own folder demands.
    """
    if os.geteuid() != 0:
        return ()
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    enter = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    inner = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import app.cli.main; assert os.geteuid()"
    probe = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    for wrapper in (drop, enter):
        if shutil.which(wrapper[0]) is None:
            continue
        command = [*wrapper, sys.executable, "-c", probe]
        if subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0:
            return wrapper
    raise AssertionError("this root can't become an ordinary user")


def test_an_ordinary_user_starts_asks_looks_and_stops(tmp_path_factory: pytest.TempPathFactory) -> None:
    wrapper = _as_ordinary_user()
    folder = Path(tempfile.mkdtemp(prefix="sy e2e "))
    with guarded(folder):
        if wrapper and wrapper[0] == "setpriv":
            os.chown(folder, NOBODY, NOBODY)
        home = {"HOME": str(folder), "TMPDIR": str(folder), "STEELYARD_CACHE_DIR": str(_cache(folder))}
        _live(Steelyard(folder, wrapper, home))


def _cache(folder: Path) -> Path:
    """A cache of its own that holds the model already, if this machine has it."""
    known = Path(os.environ.get("STEELYARD_CACHE_DIR") or Path.home() / ".cache" / "steelyard")
    own = folder / "cache"
    if known.is_dir():
        shutil.copytree(known, own)
        owner = folder.stat()
        for path in (own, *own.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
    return own


def _live(steelyard: Steelyard) -> None:
    data = str(steelyard.folder / "my data")
    started = steelyard(
        "up", "--detach", "--port", str(free_port()), "--data-dir", data, timeout_s=START_TIMEOUT_S
    )
    try:
        assert started.returncode == 0, started.stderr
        [curl] = [line for line in started.stdout.splitlines() if line.startswith("curl ")]
        answer = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
        assert re.search(r"gateway-2\s+ready", steelyard("status", "--data-dir", data).stdout)
        assert steelyard("doctor", "--data-dir", data).returncode == 0
        assert (Path(data) / "credentials.json").stat().st_mode & 0o077 == 0
    finally:
        stopped = steelyard("down", "--data-dir", data)
    assert stopped.returncode == 0
    assert steelyard("status", "--data-dir", data).returncode == 1
