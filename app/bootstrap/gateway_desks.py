"""The gateway's desks, put together of what its process holds."""

from __future__ import annotations

import asyncpg

from app.catalog.snapshot import Snapshot
from app.core.clock import Clock
from app.core.ids import DeploymentId
from app.core.settings import Settings
from app.gateway.admission import AdmissionDesk
from app.gateway.exact_count import ExactCounter
from app.gateway.schedule import Timeouts
from app.gateway.task_store import PostgresTasks
from app.gateway.tasks import TaskDesk
from billing.journal.writer import JournalWriter
from billing.quota.borrower import Borrower
from billing.quota.leases import Leases
from scheduler.policies.model import Standing
from scheduler.registry.model import BackendSpec
from scheduler.registry.service import Registry
from scheduler.transport.client import EngineClient


def admission_desk(
    own: Settings,
    snapshot: Snapshot,
    *,
    leases: Leases,
    borrower: Borrower,
    journal: JournalWriter,
    clock: Clock,
    client: EngineClient,
    registry: Registry,
) -> AdmissionDesk:
    """Admission from this process' leases, its exact counts by the engines that serve."""
    counter = ExactCounter(client, backend_of=lambda deployment: living_backend(registry, deployment))
    return AdmissionDesk(
        snapshot,
        leases=leases,
        borrower=borrower,
        journal=journal,
        clock=clock,
        counter=counter,
        money_status=own.money_refusal_status,
    )


def task_desk(pool: asyncpg.Pool, *, clock: Clock) -> TaskDesk:
    return TaskDesk(PostgresTasks(pool), clock=clock)


def living_backend(registry: Registry, deployment_id: DeploymentId) -> BackendSpec | None:
    """A backend of a deployment that may be asked to count, None if all are out."""
    for candidate in registry.candidates(deployment_id):
        if candidate.standing is not Standing.OUT:
            return registry.get(candidate.backend_id).spec
    return None


def timeouts(own: Settings) -> Timeouts:
    """How long engines are given."""
    return Timeouts(
        connect_s=own.connect_timeout_s,
        first_token_s=own.first_token_timeout_s,
        idle_s=own.idle_timeout_s,
        total_s=own.request_timeout_s,
    )
