"""What the data plane needs of other rooms; `app.bootstrap.gateway` connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from app.catalog.snapshot import Model
from app.core.errors import EngineError, Rejected
from app.core.ids import AllowanceId
from app.gateway.model import Ask
from billing.journal.model import Record, Settled
from billing.quota.lease import Hold
from billing.quota.leases import Release
from billing.quota.model import Denied, Need
from scheduler.model import Attempt, Demand
from scheduler.registry.model import BackendSpec
from scheduler.transport.model import Deadlines, EngineRequest


class Leases(Protocol):
    """The process' own leases: admission from memory."""

    def admit(self, needs: Sequence[Need]) -> Hold | None: ...
    def consume(self, hold: Hold, allowance_id: AllowanceId, *, total: int) -> None: ...
    def settle(self, hold: Hold, used: Mapping[AllowanceId, int]) -> Release: ...
    def withdraw(self, hold: Hold) -> None: ...
    def standing(self, allowance_id: AllowanceId) -> tuple[int, int] | None: ...


class Borrower(Protocol):
    """The way to the authority when the leases don't cover a need."""

    async def ask(self, needs: Sequence[Need]) -> Hold | Denied: ...


class ExactCounter(Protocol):
    """Counts a request's input exactly, where somebody can."""

    async def count(self, ask: Ask, model: Model) -> int | None: ...


class Journal(Protocol):
    """Appends records; tells when a settlement is on the disk."""

    @property
    def writable(self) -> bool: ...
    def append(self, record: Record) -> None: ...
    def settle(self, record: Settled, on_durable: Callable[[bool], None]) -> None: ...


class Sink(Protocol):
    """What a dispatch delivers into: `head piece* (end | error)`, or `error` alone."""

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, backend: BackendSpec) -> None: ...
    def piece(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def error(self, error: EngineError | Rejected) -> None: ...


class Dispatch(Protocol):
    """A request on its way to an engine."""

    attempts: list[Attempt]

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def finished(self, prompt_tokens: int, output_tokens: int) -> None: ...
    def broke_inside(self) -> None: ...


class Dispatcher(Protocol):
    """Chooses a backend, sends, retries elsewhere before the first byte. No callback before it returned."""

    def dispatch(
        self,
        demand: Demand,
        call: Callable[[BackendSpec], EngineRequest],
        *,
        deadlines: Deadlines,
        sink: Sink,
    ) -> Dispatch: ...
