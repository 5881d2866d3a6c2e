"""What the stack is made of: each service's command, surroundings, and what must be ready before it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.stack.addresses import HOST, Addresses
from app.stack.board import Progress, Report
from app.stack.data_dir import DataDir
from app.stack.demo import Demo, Engine
from app.stack.demo_model import SMOLLM2, expanded_path, is_provided
from app.stack.postgres import APP, OWNER, Postgres
from app.stack.program import SOURCE_ROOT, Command, answers_health, our_environment, python
from app.stack.schema_stamp import SchemaStamp
from app.stack.steps import run_to_end
from app.stack.supervisor import Service, Step
from app.stack.valkey import Valkey

ENGINE_SLOTS = 4
ENGINE_CONTEXT = 4096
_GATEWAY_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}
"""Keeps glibc from giving a request's memory back to the kernel and fetching it again for the next."""


@dataclass
class Stack:
    """Everything `up` starts, for one data folder.   engine_url: None for the embedded engine."""

    data: DataDir
    cache: Path
    addresses: Addresses
    engine_url: str | None = None
    postgres: Postgres = field(init=False)
    valkey: Valkey = field(init=False)

    def __post_init__(self) -> None:
        self.postgres = Postgres(self.data.postgres)
        self.valkey = Valkey(self.data.valkey)

    def units(self) -> list[Service | Step]:
        """All services and steps, in the order in which a person would tell of them."""
        return [
            Service("postgres", self.postgres),
            Step("migrate", self._migrate, after=["postgres"]),
            Service("valkey", self.valkey),
            *self._embedded_engine(),
            self._process("control", after=["migrate"], metrics_port=self.addresses.control_metrics),
            Step("admin", self._make_admin, after=["migrate"]),
            Step("demo", self._seed, after=["control", "admin"]),
            self._process("settler", after=["migrate"], metrics_port=self.addresses.settler_metrics),
            *(self._gateway(index) for index in range(self.addresses.gateways)),
            self._worker(),
            Step("check", self._check, after=["demo", *self._gateway_names()]),
        ]

    def remove(self) -> None:
        """Remove every trace of a stopped stack, wherever its servers had to live."""
        home = self.postgres.home
        for path in (home.data.parent, home.socket_folder, self.valkey.socket.parent, self.data.root):
            shutil.rmtree(path, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """What every process of ours is told; a setting of the caller's own that we don't need stays."""
        return our_environment() | {
            "STEELYARD_DATABASE_URL": self.postgres.url(role=APP),
            "STEELYARD_BROKER_URL": self.valkey.url,
            "STEELYARD_JOURNAL_DIR": str(self.data.journal),
            "STEELYARD_GATEWAY_PORT": str(self.addresses.gateway),
            "STEELYARD_CONTROL_PORT": str(self.addresses.control),
            "STEELYARD_METRICS_HOST": HOST,
        }

    def _embedded_engine(self) -> Sequence[Service | Step]:
        if self.engine_url is not None:
            return []
        command = python("app.stack.engine_process", f"--model={expanded_path(self.cache)}")
        command += [f"--alias={SMOLLM2.name}", f"--port={self.addresses.engine}"]
        command += [f"--slots={ENGINE_SLOTS}", f"--context={ENGINE_CONTEXT}"]
        command += [f"--threads={max(1, min(2, (os.cpu_count() or 2) // 2))}"]
        engine = Command(command, our_environment(), probe=partial(answers_health, self.addresses.engine))
        return [Step("model", self._provide_model), Service("engine", engine, after=["model"])]

    def _process(
        self,
        name: str,
        *,
        after: Sequence[str],
        metrics_port: int,
        arguments: Sequence[str] | None = None,
        extra: dict[str, str] | None = None,
    ) -> Service:
        """One of our own processes, ready when its own listener says so."""
        own = {"STEELYARD_METRICS_PORT": str(metrics_port)} | (extra or {})
        command = Command(
            arguments or python(f"app.bootstrap.{name}"),
            self.environment() | own,
            probe=partial(answers_health, metrics_port),
        )
        return Service(name, command, after=after)

    def _gateway(self, index: int) -> Service:
        return self._process(
            self._gateway_names()[index],
            after=["migrate"],
            metrics_port=self.addresses.gateway_metrics(index),
            arguments=python("app.bootstrap.gateway"),
            extra=_GATEWAY_MALLOC,
        )

    def _gateway_names(self) -> list[str]:
        return [f"gateway-{index + 1}" for index in range(self.addresses.gateways)]

    def _worker(self) -> Service:
        schedule = self.data.root / "beat-schedule"
        arguments = python("celery", "-A", "app.workers.celery_app", "worker", "-B", f"--schedule={schedule}")
        arguments += [
            "--pool=threads",
            "--concurrency=4",
            "--loglevel=INFO",
            "--without-gossip",
            "--without-mingle",
        ]
        port = self.addresses.worker_metrics
        return self._process("worker", after=["migrate", "valkey"], metrics_port=port, arguments=arguments)

    async def _migrate(self, report: Report) -> str:
        stamp = SchemaStamp(self.data.root / "schema", SOURCE_ROOT / "migrations" / "versions")
        if stamp.is_current():
            return "up to date"
        report(Progress(0, 0, "migrating the schema"))
        own = {"STEELYARD_MIGRATION_DATABASE_URL": self.postgres.url(role=OWNER)}
        environment = self.environment() | own
        await run_to_end(
            python("migrations.runner", "upgrade"),
            environment=environment,
            logs=self.data.logs,
            name="migrate",
        )
        stamp.write()
        return "migrated"

    async def _provide_model(self, report: Report) -> str:
        if is_provided(self.cache):
            return "in the cache"
        command = python("app.stack.model_file", str(self.cache))
        await run_to_end(
            command, environment=our_environment(), logs=self.data.logs, name="model", report=report
        )
        return "fetched"

    async def _make_admin(self, report: Report) -> str:
        report(Progress(0, 0, "making the first operator"))
        return await self.demo().make_admin()

    async def _seed(self, report: Report) -> str:
        report(Progress(0, 0, "seeding the demo tenant"))
        return await self.demo().seed()

    async def _check(self, report: Report) -> str:
        report(Progress(0, 0, "asking the gateway"))
        return await self.demo().check()

    def demo(self) -> Demo:
        """The demo of this stack, with the engine that it is to use."""
        engine = None if self.engine_url is None else Engine(self.engine_url)
        embedded = Engine(
            self.addresses.engine_url,
            kind="llama-server",
            model=SMOLLM2.name,
            context=ENGINE_CONTEXT,
            slots=ENGINE_SLOTS,
        )
        return Demo(self.data, self.addresses, engine=engine or embedded, environment=self.environment())
