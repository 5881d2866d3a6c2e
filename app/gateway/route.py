"""The data plane's hot route, bare ASGI: edge → auth → admission → schedule → relay → settle.

Each step is a module of its own; this file is the sentence. A request that is not admitted ends in
`Rejected`; from admission on, the relay owns its end, and `finally` is only there for a cancelled task.
"""

from __future__ import annotations

import logging
from typing import Any

from app.catalog.snapshot import Key, Snapshot
from app.core import ids
from app.core.clock import Clock
from app.core.errors import Rejected, SteelyardError
from app.core.ids import RequestId
from app.gateway import auth, edge
from app.gateway.access_log import AccessLog
from app.gateway.admission import AdmissionDesk
from app.gateway.body import parse
from app.gateway.errors import error_headers, error_json, kept_facts
from app.gateway.metrics import GatewayMetrics
from app.gateway.model import Admission, Endpoint, Receive, Send
from app.gateway.models_route import answer_read
from app.gateway.ports import Journal
from app.gateway.progress import Running, shutting_down
from app.gateway.protocol import EXTENSION, GatewayProtocol
from app.gateway.relay import Relay
from app.gateway.schedule import ScheduleDesk
from app.gateway.settle import SettleDesk
from app.gateway.tasks import TaskDesk
from billing.journal.model import Refused

log = logging.getLogger(__name__)


class Gateway:
    """The ASGI application.   draining: the process stops; nothing new is admitted."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        tasks: TaskDesk,
        admission: AdmissionDesk,
        schedule: ScheduleDesk,
        settle: SettleDesk,
        running: Running,
        journal: Journal,
        metrics: GatewayMetrics,
        access_log: AccessLog,
        clock: Clock,
        body_limit_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self.draining = False
        self._snapshot = snapshot
        self._tasks = tasks
        self._admission = admission
        self._schedule = schedule
        self._settle = settle
        self._running = running
        self._journal = journal
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock
        self._body_limit_bytes = body_limit_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        visit = Visit(scope, send)
        try:
            visit.endpoint = edge.inference_endpoint(scope)
            if visit.endpoint is None:
                await answer_read(
                    visit.path, visit.headers, snapshot=self._snapshot, clock=self._clock, send=send
                )
            else:
                await self._infer(visit, receive, endpoint=visit.endpoint)
        except Rejected as refusal:
            await self._refuse(visit, refusal)
        except edge.ClientGone:
            pass
        except Exception:  # the ASGI rim
            log.exception("request_failed", extra={"request_id": visit.request_id})
            self._metrics.invariant("request_failed")
            if not visit.relayed:
                await visit.answer(SteelyardError("The gateway failed. This is recorded."))

    async def _infer(self, visit: Visit, receive: Receive, *, endpoint: Endpoint) -> None:
        edge.check_head(visit.headers, limit_bytes=self._body_limit_bytes)
        key = visit.key = auth.find_key(visit.headers, self._snapshot)
        principal = auth.authorize(key, self._snapshot, now_ms=self._clock.now_ms())
        body = await edge.read_body(
            receive, visit.connection, limit_bytes=self._body_limit_bytes, timeout_s=self._body_timeout_s
        )
        ask = parse(body, endpoint)
        visit.model = ask.model
        model = auth.choose_model(ask.model, principal, snapshot=self._snapshot)
        if self.draining:
            raise shutting_down()
        task = await self._tasks.find(visit.headers, principal)
        admission = await self._admission.admit(
            ask, request_id=visit.request_id, principal=principal, model=model, task=task
        )
        visit.relayed = True
        await self._relay(visit, admission)

    async def _relay(self, visit: Visit, admission: Admission) -> None:
        """Relay to the request's end, which the client's going or the process' stop may bring too."""
        relay = Relay(admission, self._settle.open(admission))
        visit.connection.on_gone = relay.gone
        self._running.add(relay)
        try:
            if visit.connection.lost:  # while the balance was asked for
                relay.gone()
            elif auth.is_cut(relay.tenant_id, self._snapshot):
                relay.abort(auth.suspended())
                await relay.outbox.pump(visit.send)
            else:
                self._start(relay, admission)
                await relay.outbox.pump(visit.send)
        finally:
            visit.connection.on_gone = None
            self._running.discard(relay)
            if not relay.ended:
                relay.abort(shutting_down())
            relay.forget()

    def _start(self, relay: Relay, admission: Admission) -> None:
        try:
            relay.follow(self._schedule.start(admission, relay))
        except Exception:  # admitted already: it must end as any other, with a settlement and an answer
            log.exception("dispatch_failed", extra={"request_id": admission.request_id})
            self._metrics.invariant("dispatch_failed")
            relay.abort(SteelyardError("The gateway failed. This is recorded."))

    async def _refuse(self, visit: Visit, refusal: Rejected) -> None:
        self._metrics.refused(refusal.reason)
        if visit.key is not None:
            self._note_refusal(visit, refusal, key=visit.key)
        await visit.answer(refusal)

    def _note_refusal(self, visit: Visit, refusal: Rejected, *, key: Key) -> None:
        known = visit.model is not None and self._snapshot.model(visit.model) is not None
        record = Refused(
            request_id=visit.request_id,
            at_ms=self._clock.now_ms(),
            tenant_id=key.tenant_id,
            project_id=key.project_id,
            key_id=key.key_id,
            model_name=visit.model if known else None,
            endpoint=visit.path,
            reason=refusal.reason.value,
            message=refusal.public_message,
            status=refusal.status,
            limit=refusal.limit,
            observed=refusal.observed,
            retry_after_s=refusal.retry_after_s,
            allowance_id=refusal.facts.get("allowance_id"),
            facts=kept_facts(refusal),
        )
        self._journal.append(record)
        self._access_log.refused(record)


class Visit:
    """One call of the application: what is known of it so far, and the way to answer it."""

    __slots__ = ("connection", "endpoint", "headers", "key", "model", "path", "relayed", "request_id", "send")

    def __init__(self, scope: dict[str, Any], send: Send) -> None:
        self.request_id: RequestId = ids.request_id()
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.connection: GatewayProtocol = scope["extensions"][EXTENSION]
        self.send = send
        self.endpoint: Endpoint | None = None
        self.key: Key | None = None
        self.model: str | None = None
        self.relayed = False

    async def answer(self, error: SteelyardError) -> None:
        """Answer with an error. One that waits for `100 Continue` keeps its body: it ends the connection."""
        body = error_json(error, self.request_id)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", self.request_id.encode()),
            *error_headers(error),
        ]
        if not self.connection.body_arrived:
            if any(name == b"expect" for name, _ in self.headers):
                headers.append((b"connection", b"close"))
            else:
                self.connection.linger()
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
