"""One stack for all end-to-end tests of a session."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.guardian import guarded
from tests.e2e.stack import START_TIMEOUT_S, Stack, Steelyard, eventually, free_port


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A fresh stack with the demo in it; its data are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sy-e2e-"))
    folder.chmod(0o711)
    steelyard = Steelyard(folder, environment={"TMPDIR": str(folder)})
    begin = ("up", "--ephemeral", "--detach", "--json", "--port", str(free_port()))
    with guarded(folder):
        outcome = steelyard(*begin, timeout_s=START_TIMEOUT_S)
        assert outcome.returncode == 0, outcome.stderr
        started = Stack(steelyard, json.loads(outcome.stdout))
        yield started
        ended = steelyard("down", "--data-dir", started.data_dir)
        assert ended.returncode == 0, ended.stderr
        eventually(lambda: not Path(started.data_dir).exists())
