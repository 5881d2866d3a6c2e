"""uvicorn's HTTP protocol with the bounds that it lacks, and a direct word when the client is gone.

Each connection is looked at once a second by a sweep of the process, so that no request pays a timer:
a head that does not end, a client that does not read. ASGI's own sign of a lost connection costs a task
waiting on `receive()`; here the application leaves a callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request in a row that bring nothing: of a head, a trailer, a chunk's extensions."""
MAX_DRAINED_BYTES = 128 * 1024 * 1024
"""Most of a refused body that is read and thrown away, so that its sender gets to read the refusal."""
LINGER_S = 5.0
"""Longest time for which it is."""
EXTENSION = "steelyard.connection"


class GatewayProtocol(HttpToolsProtocol):
    """One client connection.

    on_gone: called once when the connection is lost; whoever serves its present request sets it.
    """

    head_timeout_s = 30.0
    stall_timeout_s = 60.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.on_gone: Callable[[], None] | None = None
        self._idle_bytes = 0
        self._drained_bytes = 0
        self._linger_since: float | None = None
        self._closes_after = False
        self._deaf = False
        self._head_since: float | None = None
        self._stalled_since: float | None = None

    @property
    def body_arrived(self) -> bool:
        """True if the present request is here to its end."""
        return not self.cycle.more_body

    @property
    def lost(self) -> bool:
        """True if the client is gone."""
        return self.parser is None

    def sweep(self, now: float) -> None:
        """Close the connection if its request's head is overdue or its client has stopped reading."""
        if self._head_since is not None and now - self._head_since > self.head_timeout_s:
            self._refuse(408, "The request's head did not come in time.", code="body_timeout")
        elif self._linger_since is not None and now - self._linger_since > LINGER_S:
            self.transport.close()
        elif self._stalled_since is not None and now - self._stalled_since > self.stall_timeout_s:
            self.transport.abort()

    def linger(self) -> None:
        """The present request is refused while its body is still coming: take that in before any close.

        To close at once would reset the connection, and its sender might never read the refusal.
        """
        self._closes_after = not self.cycle.keep_alive
        self.cycle.keep_alive = True
        self._linger_since = self.loop.time()

    # uvicorn's and the parser's callbacks.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_since = self._stalled_since = None
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._drain(len(data))
            return
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "The request's headers are too large.", code="body_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_since = self.loop.time()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._idle_bytes = 0
        self._head_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        if self.cycle.response_complete:
            self._drain(len(body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        super().on_message_complete()
        if self._linger_since is not None:
            self._end_linger()

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP.", code="body_invalid")

    def _unsupported_upgrade_warning(self) -> None:
        pass  # served as the plain request that it also is

    def _refuse(self, status: int, message: str, *, code: str) -> None:
        """Answer in OpenAI's shape if nothing is being answered, and hear nothing more."""
        self._head_since = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
        elif not self._deaf:
            self._deaf = True
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
            body = msgspec.json.encode({"error": error})
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n" % (status, HTTPStatus(status).phrase.encode(), len(body)) + body
            )
            self._linger_since = self.loop.time()
            self.transport.write_eof()

    def _end_linger(self) -> None:
        self._linger_since = None
        if self._closes_after:
            self.transport.close()
        elif self.cycle.response_complete:  # idle again: its timer ended with the first bytes drained
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _drain(self, size: int) -> None:
        """Throw bytes away, within a bound."""
        self._drained_bytes += size
        if self._drained_bytes > MAX_DRAINED_BYTES:
            self.transport.close()
