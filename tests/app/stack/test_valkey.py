"""The embedded Valkey: reachable for Celery under any path, and it keeps what it was told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import kombu

from app.stack.valkey import Valkey


def start(valkey: Valkey, log: Path) -> subprocess.Popen[bytes]:
    valkey.prepare()
    with log.open("ab") as file:
        process = valkey.spawn(file)
    while not valkey.is_ready():
        assert process.poll() is None, log.read_text()
    return process


def test_a_message_survives_a_kill_under_a_path_with_spaces(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path / "with a space" / "valkey")
    log = tmp_path / "log"
    process = start(valkey, log)
    with kombu.Connection(valkey.url) as connection:
        connection.SimpleQueue("kept").put("word")
    process.terminate()
    process.wait()
    process = start(valkey, log)
    with kombu.Connection(valkey.url) as connection:
        assert connection.SimpleQueue("kept").get(timeout=5).payload == "word"
    process.kill()
    process.wait()
    assert not valkey.is_ready()
    process = start(valkey, log)
    process.kill()
    process.wait()
