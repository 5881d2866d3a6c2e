"""The worker as it runs: a real process on a real broker and a real database."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.account import myself
from app.stack.program import SOURCE_ROOT, answers_health
from app.stack.valkey import Valkey
from app.workers.celery_app import make_app
from tests.app.workers.receiver import open_receiver
from tests.billing.alerts.tower import open_tower
from tests.database import Database

Worker = tuple[subprocess.Popen[bytes], int]
"""The process and the port of its own listener."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def broker_url(tmp_path: Path) -> Iterator[str]:
    valkey = Valkey(tmp_path / "valkey")
    valkey.prepare()
    with (tmp_path / "valkey.log").open("wb") as log:
        process = valkey.spawn(log)
    while not valkey.is_ready():
        assert process.poll() is None
    yield valkey.url
    process.kill()
    process.wait()


@pytest.fixture
def worker(broker_url: str, database: Database, tmp_path: Path) -> Iterator[Worker]:
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "app.workers.celery_app", "worker", "-B"]
    command += ["-P", "threads", "-c", "2", f"--schedule={tmp_path / 'beat'}"]
    environment = os.environ | {
        "PYTHONPATH": str(SOURCE_ROOT),
        "STEELYARD_BROKER_URL": broker_url,
        "STEELYARD_DATABASE_URL": database.app_url,
        "STEELYARD_METRICS_PORT": str(port),
        "STEELYARD_WEBHOOK_PRIVATE_HOSTS": "localhost",
    }
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **myself().arguments(signal.SIGKILL),
        )
    yield process, port
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def facts(port: int) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return dict(json.load(answer))


def test_the_worker_proves_the_books_says_so_and_stops_in_order(worker: Worker) -> None:
    process, port = worker
    while not answers_health(port):
        assert process.poll() is None
    while "unbalanced" not in facts(port):
        assert process.poll() is None
    assert facts(port) == {"status": "ok", "unbalanced": [], "drifting": []}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"steelyard_ledger_drifting_wallets 0.0" in answer.read()
    process.terminate()
    assert process.wait() == 0


async def test_an_alert_goes_through_the_worker_to_its_receiver(worker: Worker, database: Database) -> None:
    process, _ = worker
    async with open_tower(database) as tower, open_receiver() as receiver:
        await tower.endpoint(receiver.url)
        wallet = await tower.allowance(100)
        await tower.lend(await tower.desk.incarnation(), wallet, 50)
        await receiver.came.wait()
        assert process.poll() is None
        (delivery,) = await tower.deliveries()
        assert receiver.got[0].headers["webhook-id"] == delivery.id


def test_a_task_of_a_dead_worker_is_given_to_another() -> None:
    conf = make_app("memory://").conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    assert conf.broker_transport_options["unacked_restore_interval"] == 5
