"""The stand-in as a whole: its routes, its slots and queue, its counters, its listener."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable

import msgspec

from scheduler.simulator.connection import Connection, Listener, Request
from scheduler.simulator.generation import Generation
from scheduler.simulator.model import Fault, FaultKind, Options, parse_fault, with_knobs
from scheduler.simulator.request import Asked, Refused, read_request
from scheduler.simulator.stats import Stats
from scheduler.simulator.wire import BUSY, CORE_DIED, Answer, error_body

_KINDS = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "Service Unavailable"}


class SimulatedEngine:
    """An engine on a port of its own. `stats` is the truth of what it generated.

    Use it within a test by `await engine.start()`, or as a process by `python -m scheduler.simulator`.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.fault = self.options.fault
        self.stats = Stats()
        self.port = 0
        self._host = "127.0.0.1"
        self._server: asyncio.Server | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self._waiting: deque[Generation] = deque()
        self._seen = 0
        self._routes: dict[tuple[str, str], Callable[[Request, Connection], Listener | None]] = {
            ("POST", "/v1/chat/completions"): lambda r, c: self._complete(r, c, chat=True),
            ("POST", "/v1/completions"): lambda r, c: self._complete(r, c, chat=False),
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): lambda _, c: c.whole(200, b'{"version":"steelyard-simulator"}'),
            ("GET", "/simulator/stats"): lambda _, c: c.whole(200, msgspec.json.encode(self.stats.as_json())),
            ("POST", "/simulator/fault"): self._set_fault,
            ("POST", "/simulator/refuse"): self._refuse,
        }

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Starting again after `stop` takes the same port."""
        loop = asyncio.get_running_loop()
        closes = self.options.close_after_stream
        self._host = host
        self._server = await loop.create_server(
            lambda: Connection(self, self._connections, close_after_stream=closes),
            host,
            port or self.port,
            backlog=1024,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Refuse connections from now on and cut those there are, as if it were killed."""
        if self._reopening is not None:
            self._reopening.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.close()
        while self._connections:  # noqa: ASYNC110 - each leaves within a turn of the loop
            await asyncio.sleep(0)

    @property
    def listening(self) -> bool:
        return self._server is not None

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self.port}"

    def handle(self, request: Request, connection: Connection) -> Listener | None:
        path = request.path.partition("?")[0]
        route = self._routes.get((request.method, path))
        if route is not None:
            return route(request, connection)
        allowed = [method for method, known in self._routes if known == path]
        if allowed:
            connection.whole(405, b'{"detail":"Method Not Allowed"}', extra=f"allow: {allowed[0]}\r\n")
        else:
            connection.whole(404, b'{"detail":"Not Found"}')
        return None

    def _complete(self, request: Request, connection: Connection, *, chat: bool) -> Listener | None:
        try:
            options = with_knobs(self.options, header=request.header(b"x-simulator"), body=request.body)
        except ValueError as error:
            self._refused(connection, str(error), status=400)
            return None
        asked = read_request(request.body, options, chat=chat)
        if isinstance(asked, Refused):
            self.stats.refused += 1
            connection.whole(asked.status, asked.body)
            return None
        # A request's own fault strikes always; the engine's own, every so often.
        fault = options.fault if options.fault is not self.options.fault else self._own_fault()
        refusal = _refusal_of(fault)
        if refusal is not None:
            self._refused(connection, refusal[1], status=refusal[0])
            return None
        if fault is not None and fault.kind is FaultKind.RESET:
            connection.close()
            return None
        full = self.stats.running >= self.options.max_num_seqs
        if full and len(self._waiting) >= self.options.max_queued:
            self._refused(connection, BUSY, status=503)
            return None
        generation = self._generation(
            request, connection, asked=asked, options=options, fault=fault, chat=chat
        )
        if full:
            self._waiting.append(generation)
            self.stats.waiting += 1
        else:
            self.stats.running += 1
            generation.start()
        return generation

    def _generation(
        self,
        request: Request,
        connection: Connection,
        *,
        asked: Asked,
        options: Options,
        fault: Fault | None,
        chat: bool,
    ) -> Generation:
        request_id = request.header(b"x-request-id") or uuid.uuid4().hex[:16]
        answer = Answer(
            request_id=("chatcmpl-" if chat else "cmpl-") + request_id,
            chat=chat,
            model=options.model,
            created=int(time.time()),
            choices=asked.choices,
            prompt_tokens=asked.prompt_tokens,
            tokens=asked.tokens,
            stops=asked.stops,
            multibyte=options.multibyte,
            cached=min(options.cached, asked.prompt_tokens) if options.prompt_details else None,
        )
        return Generation(
            answer,
            asked,
            options=options,
            fault=fault,
            reply=connection,
            stats=self.stats,
            served=self.stats.admitted(request_id, asked.prompt_tokens, times=asked.times),
            on_end=self._ended,
        )

    def _ended(self, generation: Generation) -> None:
        if not generation.started:
            self._waiting.remove(generation)
            self.stats.waiting -= 1
            return
        self.stats.running -= 1
        if self._waiting:
            self.stats.waiting -= 1
            self.stats.running += 1
            self._waiting.popleft().start()

    def _own_fault(self) -> Fault | None:
        self._seen += 1
        return self.fault if self._seen % self.options.fault_every == 0 else None

    def _refused(self, connection: Connection, message: str, *, status: int) -> None:
        self.stats.refused += 1
        kind = _KINDS.get(status, "InternalServerError")
        connection.whole(status, error_body(message, kind=kind, status=status))

    def _health(self, _: Request, connection: Connection) -> None:
        dead = self.fault is not None and self.fault.kind is FaultKind.DEAD
        connection.whole(503 if dead else 200, b"")

    def _models(self, _: Request, connection: Connection) -> None:
        row = {
            "id": self.options.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "steelyard-simulator",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.options.max_model_len,
            "permission": [],
        }
        connection.whole(200, msgspec.json.encode({"object": "list", "data": [row]}))

    def _metrics(self, _: Request, connection: Connection) -> None:
        text = self.stats.as_metrics(self.options.model, self.options.max_num_seqs)
        connection.whole(200, text, content_type="text/plain; version=0.0.4; charset=utf-8")

    def _set_fault(self, request: Request, connection: Connection) -> None:
        """`{"fault": "hang"}`, or null for none: from the next request on."""
        try:
            text = msgspec.json.decode(request.body)["fault"]
            self.fault = parse_fault(text) if text else None
        except (ValueError, KeyError, TypeError):
            self._refused(connection, 'expected {"fault": "kind:n"} or {"fault": null}', status=400)
        else:
            connection.whole(200, b"{}")

    def _refuse(self, request: Request, connection: Connection) -> None:
        """`{"seconds": 2}`: refuse new connections for that long; those there are stay."""
        try:
            seconds = float(msgspec.json.decode(request.body)["seconds"])
        except (ValueError, KeyError, TypeError):
            self._refused(connection, 'expected {"seconds": number}', status=400)
            return
        connection.whole(200, b"{}")
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._reopening = asyncio.create_task(self._reopen(seconds))

    async def _reopen(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.start(self._host, self.port)


def _refusal_of(fault: Fault | None) -> tuple[int, str] | None:
    if fault is None or fault.kind not in (FaultKind.STATUS, FaultKind.DEAD):
        return None
    status = fault.n if fault.kind is FaultKind.STATUS else 500
    return status, BUSY if status == 503 else CORE_DIED
