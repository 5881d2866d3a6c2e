"""The command line in this process, against a fake control API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from app.cli.main import run
from tests.app.cli.fake_control import FakeControl, serve


@dataclass(frozen=True)
class Result:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Steelyard = Callable[..., Result]


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControl]:
    with serve() as fake:
        monkeypatch.setenv("STEELYARD_CONTROL_URL", fake.url)
        monkeypatch.setenv("STEELYARD_TOKEN", "sya_test")
        for name in ("STEELYARD_TENANT", "STEELYARD_PROJECT", "STEELYARD_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        yield fake


@pytest.fixture
def steelyard(capsys: pytest.CaptureFixture[str]) -> Steelyard:
    """Runs one command line: `steelyard("keys", "list")`."""

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
