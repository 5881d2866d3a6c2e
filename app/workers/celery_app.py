"""Celery: the worker and its beat. `celery -A app.workers.celery_app worker -B -P threads -c 4`.

The broker only wakes work. The facts are rows in PostgreSQL, so a task may be lost, doubled or late
without harm: each looks at the rows and does what they ask for.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, worker_init, worker_ready, worker_shutting_down

from app.core import log
from app.core.settings import settings
from app.stack.child import die_with_parent
from app.workers.alerts import LOOK_OVER_ALERTS, RAISE_ALERTS
from app.workers.deliveries import DELIVER_ALERTS
from app.workers.engine_counters import READ_ENGINES
from app.workers.expiry import EXPIRY
from app.workers.health import WorkerHealth
from app.workers.proofs import TRIAL_BALANCE, last_proof
from app.workers.pruning import PRUNE
from app.workers.reconcile import RECONCILE
from app.workers.sealing import SEAL

VISIBILITY_TIMEOUT_S = 300
"""After so long a task of a dead worker is given to another one."""
PROOF_EVERY_S = 60.0
PRUNE_EVERY_S = 3600.0
EXPIRY_EVERY_S = 60.0
SEAL_EVERY_S = 5.0
READ_ENGINES_EVERY_S = 60.0
RECONCILE_EVERY_S = 3600.0
RAISE_ALERTS_EVERY_S = 3.0
DELIVER_ALERTS_EVERY_S = 3.0
LOOK_OVER_ALERTS_EVERY_S = 600.0
_MODULES = ["app.workers.tasks"]


def make_app(broker_url: str) -> Celery:
    """A Celery app on a broker: late acknowledgement, one task at a time fetched, beat's schedule in it."""
    app = Celery("steelyard", broker=broker_url, include=_MODULES)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue="steelyard",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        # The sweep for tasks of dead workers runs every 5 s; kombu's own default adds 100 s to each.
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
        },
        timezone="UTC",
        beat_schedule={
            "trial-balance": _every(PROOF_EVERY_S, TRIAL_BALANCE),
            "prune": _every(PRUNE_EVERY_S, PRUNE),
            "expiry": _every(EXPIRY_EVERY_S, EXPIRY),
            "seal": _every(SEAL_EVERY_S, SEAL),
            "read-engines": _every(READ_ENGINES_EVERY_S, READ_ENGINES),
            "reconcile": _every(RECONCILE_EVERY_S, RECONCILE),
            "raise-alerts": _every(RAISE_ALERTS_EVERY_S, RAISE_ALERTS),
            "deliver-alerts": _every(DELIVER_ALERTS_EVERY_S, DELIVER_ALERTS),
            "look-over-alerts": _every(LOOK_OVER_ALERTS_EVERY_S, LOOK_OVER_ALERTS),
        },
    )
    return app


def _every(seconds: float, task: str) -> dict[str, Any]:
    """An entry of beat's schedule; a tick that no worker took before the next one is dropped."""
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app = make_app(settings().broker_url.get_secret_value())
health = WorkerHealth(facts=last_proof)


def _begin(**_: Any) -> None:
    log.configure("worker", level=settings().log_level)
    health.serve(settings().metrics_host, settings().metrics_port)


def _ready(**_: Any) -> None:
    health.mark(ready=True)
    for task in (TRIAL_BALANCE, READ_ENGINES, RECONCILE):
        app.send_task(task)


def _end(**_: Any) -> None:
    health.mark(ready=False)


def _bind_beat(**_: Any) -> None:
    """Beat is a process of its own: outliving a worker that was killed, it would double every tick."""
    die_with_parent()()


worker_init.connect(_begin)
worker_ready.connect(_ready)
worker_shutting_down.connect(_end)
beat_embedded_init.connect(_bind_beat)
