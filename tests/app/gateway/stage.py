"""One relay among hand-written fakes: a journal that a test commits, a dispatch that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from app.catalog.snapshot import Key, Model, Tenant
from app.core import ids
from app.core.clock import ManualClock
from app.core.ids import AllowanceId, BackendId, DeploymentId, ModelId, PriceVersionId
from app.gateway.access_log import AccessLog
from app.gateway.body import parse
from app.gateway.metrics import GatewayMetrics
from app.gateway.model import Admission, Endpoint, Principal
from app.gateway.relay import Relay
from app.gateway.settle import SettleDesk
from app.gateway.terms import Drawn, needs_of
from app.gateway.tokenizer import TokenCounter
from app.gateway.tokenizer_files import TokenizerFiles
from billing.journal.model import Admitted, Held, Record, Settled
from billing.metering.model import Usage
from billing.quota.leases import Leases
from billing.quota.model import Need
from billing.rating.model import Rates
from scheduler.model import Attempt
from scheduler.registry.model import BackendSpec
from scheduler.transport.client import EngineClient

WALLET = AllowanceId("alw_1")
BACKEND = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), "http://127.0.0.1:9", "vllm", "m", 8)
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]


class FakeJournal:
    """Keeps records; a test says when, and whether, they are durable."""

    def __init__(self) -> None:
        self.writable = True
        self.settled: list[Settled] = []
        self._waiting: list[Callable[[bool], None]] = []

    def append(self, record: Record) -> None:
        pass

    def settle(self, record: Settled, on_durable: Callable[[bool], None]) -> None:
        self.settled.append(record)
        self._waiting.append(on_durable)

    def commit(self, *, durable: bool = True) -> None:
        waiting, self._waiting = self._waiting, []
        for on_durable in waiting:
            on_durable(durable)


class FakeDispatch:
    """A dispatch that does nothing by itself."""

    def __init__(self) -> None:
        self.attempts = [Attempt(BACKEND.backend_id, 0, 1.0)]
        self.cancelled = self.paused = self.broke = False
        self.learnt: list[tuple[int, int]] = []

    def cancel(self) -> None:
        self.cancelled = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def finished(self, prompt_tokens: int, output_tokens: int) -> None:
        self.learnt.append((prompt_tokens, output_tokens))

    def broke_inside(self) -> None:
        self.broke = True


@dataclass
class Stage:
    """A relay among fakes; `sent` is what its client got."""

    journal: FakeJournal
    leases: Leases
    dispatch: FakeDispatch
    relay: Relay
    desk: SettleDesk
    admission: Admission
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def pump(self) -> None:
        """Let the client have what may leave; returns when the answer has ended or waits."""
        pumping = asyncio.ensure_future(self.relay.outbox.pump(self.send))
        for _ in range(5):
            await asyncio.sleep(0)
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_whole(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def free(self) -> int:
        lease = self.leases.lease(WALLET)
        return lease.free


def _lent(leases: Leases, rates: tuple[Drawn, ...]) -> tuple[Need, ...]:
    """What the request needs of rates, of each of which 1000 are lent."""
    for each in rates:
        lease = leases.lease(each.allowance_id, each.rate)
        lease.granted = lease.free = 1000
        lease.ends_at = inf
    return needs_of(rates, Usage(input=100, output=50), cost_picos=0)


def stage(
    *,
    streamed: bool = True,
    backend: BackendSpec = BACKEND,
    client: EngineClient | None = None,
    tokenizer: str | None = None,
    endpoint: Endpoint = Endpoint.CHAT,
    rates: tuple[Drawn, ...] = (),
    **asked: Any,
) -> Stage:
    """An admitted request: 200 of 1000 picos held, at most 100 tokens of input and 50 of output.

    rates: what it holds besides, as much as it needs of each.
    """
    clock, journal, leases = ManualClock(), FakeJournal(), Leases()
    lease = leases.lease(WALLET)
    lease.granted = lease.free = 1000
    given = {"messages": [{"role": "user", "content": "one two"}]}
    if endpoint is Endpoint.COMPLETIONS:
        given = {"prompt": "one two"}
    members: dict[str, Any] = {"model": "m", **given, "stream": streamed, **asked}
    ask = parse(msgspec.json.encode(members), endpoint)
    key = Key(ids.key_id(), ids.tenant_id(), ids.project_id(), b"", frozenset(), None, None, None)
    record = Admitted(
        request_id=ids.request_id(),
        at_ms=0,
        tenant_id=key.tenant_id,
        project_id=key.project_id,
        key_id=key.key_id,
        model_id=ModelId("mdl_1"),
        model_name="m",
        deployment_id=BACKEND.deployment_id,
        endpoint=endpoint.value,
        streamed=streamed,
        currency="USD",
        price_version_id=PriceVersionId("pbv_1"),
        rates=Rates(1, 1, 1, 2),
        input_bound=100,
        output_bound=50,
        holds=(Held(WALLET, 200),),
    )
    hold = leases.admit((Need(WALLET, 200), *_lent(leases, rates)))
    assert hold is not None
    model = Model(record.model_id, "m", 4096, 1024, 64, 0, record.deployment_id, tokenizer)
    principal = Principal(key, Tenant(key.tenant_id, "active", "USD", None, WALLET))
    desk = SettleDesk(
        journal=journal,
        leases=leases,
        clock=clock,
        counter=TokenCounter(client or EngineClient(), files=TokenizerFiles(clock=clock), timeout_s=5.0),
        metrics=GatewayMetrics(),
        access_log=AccessLog(lambda _: None, clock=clock),
    )
    admission = Admission(record, hold, ask, principal, model, 50, rates)
    relay, dispatch = Relay(admission, desk.open(admission)), FakeDispatch()
    relay.follow(dispatch)
    return Stage(journal, leases, dispatch, relay, desk, admission)
