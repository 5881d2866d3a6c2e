"""One request and its answer: its phases, its deadlines, and that it ends exactly once."""

from __future__ import annotations

import asyncio
from enum import Enum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from app.core.errors import ConnectFailed, EngineError, FirstTokenTimeout, StreamBroken
from scheduler.transport.deadlines import DeadlineWatch
from scheduler.transport.model import Deadlines, Target
from scheduler.transport.ports import Sink

if TYPE_CHECKING:
    from scheduler.transport.connection import Connection

_UNREACHABLE = "The engine could not be reached."
_NO_FIRST_BYTE = "The engine did not start to answer in time."
_BROKEN = "The engine's answer ended before its end."


class _Nobody:
    """The sink of an exchange that is over: so that it holds neither its caller nor its caller's body."""

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def piece(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def error(self, error: EngineError) -> None: ...


_NOBODY = _Nobody()


class Phase(Enum):
    """What an exchange waits for."""

    CONNECT = "connect"
    SEND = "send"
    FIRST_BYTE = "first_byte"
    BODY = "body"
    DONE = "done"


class Exchange:
    """The caller's handle on one exchange.

    sent: the whole request has been handed to the socket.   connected_ms, first_byte_ms: from `send` to the
    connection and to the body's first byte, None until then.   bytes_received: of the body.   reused,
    retried: on a pooled connection; once more on a fresh one, as the pooled one was dead.
    """

    __slots__ = (
        "_allowed_s",
        "_connecting",
        "_connection",
        "_deadlines",
        "_paused",
        "_phase",
        "_sink",
        "_started",
        "_target",
        "_total_at",
        "_touched",
        "_watch",
        "bodiless",
        "body",
        "bytes_received",
        "connected_ms",
        "first_byte_ms",
        "head",
        "response_started",
        "retried",
        "reused",
        "sent",
    )

    def __init__(
        self, target: Target, *, head: bytes, body: bytes, bodiless: bool, deadlines: Deadlines, sink: Sink
    ) -> None:
        now = monotonic()
        self.head = head
        self.body = body
        self.bodiless = bodiless
        self.sent = False
        self.reused = False
        self.retried = False
        self.response_started = False
        self.bytes_received = 0
        self.connected_ms: float | None = None
        self.first_byte_ms: float | None = None
        self._target = target
        self._deadlines = deadlines
        self._sink = sink
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watch: DeadlineWatch | None = None
        self._paused = False
        self._phase = Phase.CONNECT
        self._started = self._touched = now
        self._allowed_s = deadlines.connect_s
        self._total_at = now + deadlines.total_s

    # For the caller.

    def cancel(self) -> None:
        """Close the connection at once, so that the engine aborts. No callback follows. Idempotent."""
        if self._phase is not Phase.DONE:
            self._release()

    def pause(self) -> None:
        """Stop reading; at most what one read brought is still delivered. Idempotent.

        The deadlines for the first byte and for idleness stand still; the total one runs on.
        """
        if self._paused or self._phase is Phase.DONE:
            return
        self._paused = True
        if self._phase in (Phase.FIRST_BYTE, Phase.BODY):
            self._allowed_s = inf
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on after `pause`. Idempotent."""
        if not self._paused or self._phase is Phase.DONE:
            return
        self._paused = False
        if self._phase in (Phase.FIRST_BYTE, Phase.BODY):
            self._enter(self._phase)
        if self._connection is not None:
            self._connection.resume()

    @property
    def done(self) -> bool:
        """True once it has ended, failed or been cancelled."""
        return self._phase is Phase.DONE

    @property
    def paused(self) -> bool:
        return self._paused

    # For the watch.

    def due(self) -> float:
        return min(self._touched + self._allowed_s, self._total_at)

    def expire(self) -> None:
        if monotonic() >= self._total_at:
            reason = "total deadline"
        else:
            reason = {Phase.BODY: "idle deadline", Phase.SEND: "engine stopped reading"}.get(
                self._phase, f"{self._phase.value} deadline"
            )
        self.fail(reason, timed_out=True)

    # For the room's own connections and pools.

    def watched_by(self, watch: DeadlineWatch) -> None:
        self._watch = watch
        watch.add(self)

    def connecting(self, task: asyncio.Task[None]) -> None:
        """A fresh connection is on its way, for the first time or again."""
        self._connecting = task
        self._connection = None
        self.sent = False
        self._enter(Phase.CONNECT)

    def attached(self, connection: Connection) -> None:
        """The request is about to be written to this connection."""
        self._connecting = None
        self._connection = connection
        self.reused = connection.used
        self.connected_ms = (monotonic() - self._started) * 1000

    def connect_failed(self, reason: str) -> None:
        self._connecting = None  # the task that calls this: it ends by itself
        self.fail(reason)

    def written(self, *, all_sent: bool) -> None:
        """Some of the request, or the last of it, has been handed to the socket."""
        self.sent = all_sent
        if self._phase is not Phase.BODY:  # else the answer began before the request's end
            self._enter(Phase.FIRST_BYTE if all_sent else Phase.SEND)

    def deliver_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.body = b""  # no retry from here on, and a long stream need not hold its prompt
        if status >= 300:
            self._enter(Phase.BODY)
        self._sink.head(status, headers)

    def deliver_piece(self, data: bytes) -> None:
        if not self.bytes_received:
            self.first_byte_ms = (monotonic() - self._started) * 1000
            self._enter(Phase.BODY)
        else:
            self._touched = monotonic()
        self.bytes_received += len(data)
        self._sink.piece(data)

    def deliver_end(self) -> None:
        """The response is complete and its connection given back or closed."""
        self._connection = None
        self._release().end()

    def fail(self, reason: str, *, timed_out: bool = False) -> None:
        """End with the error that fits the phase; nothing if it has ended. Closes the connection."""
        if self._phase is Phase.DONE:
            return
        error = self._error(reason, timed_out=timed_out)
        self._release().error(error)

    def _error(self, reason: str, *, timed_out: bool) -> EngineError:
        facts: dict[str, Any] = {
            "phase": self._phase.value,
            "reason": reason,
            "host": self._target.host,
            "port": self._target.port,
            "elapsed_ms": round((monotonic() - self._started) * 1000),
            "bytes_received": self.bytes_received,
            "response_started": self.response_started,
            "retried": self.retried,
        }
        if self._phase is Phase.CONNECT:
            return ConnectFailed(_UNREACHABLE, **facts)
        if timed_out and self._phase in (Phase.SEND, Phase.FIRST_BYTE):
            return FirstTokenTimeout(_NO_FIRST_BYTE, **facts)
        if not self.sent and not self.response_started:
            # The engine never had the whole request, so it can't have acted on it.
            return ConnectFailed(_UNREACHABLE, **facts)
        return StreamBroken(_BROKEN, **facts)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._touched = monotonic()
        deadlines = self._deadlines
        if phase is Phase.CONNECT:
            self._allowed_s = deadlines.connect_s
        elif phase is Phase.SEND:
            self._allowed_s = deadlines.idle_s
        elif self._paused:
            self._allowed_s = inf
        else:
            self._allowed_s = deadlines.first_byte_s if phase is Phase.FIRST_BYTE else deadlines.idle_s
        watch = self._watch
        if watch is not None and self._touched + self._allowed_s < watch.wake_at:
            watch.moved(self)

    def _release(self) -> Sink:
        """Let go of everything; returns the sink, for its last word."""
        sink, self._sink = self._sink, _NOBODY
        self._phase = Phase.DONE
        self.body = b""
        if self._watch is not None:
            self._watch.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort()
        return sink
