"""The way to the client: a bounded buffer between the engine's callbacks and ASGI's `send`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.gateway.model import Headers, Send

HIGH_WATER_BYTES = 256 * 1024
"""Buffered beyond this, the engine is paused until all of it is with the client's socket."""


class Outbox:
    """Takes head and pieces at any time; `pump` sends them, joined, in the request's own task.

    on_full, on_room: pause and resume whoever fills it.
    """

    __slots__ = (
        "_dropped",
        "_finished",
        "_full",
        "_head",
        "_pieces",
        "_size",
        "_waiter",
        "on_full",
        "on_room",
    )

    def __init__(self, *, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        self.on_full = on_full
        self.on_room = on_room
        self._head: dict[str, object] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._full = False
        self._finished = False
        self._dropped = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the client's socket to take more."""
        return self._size

    def start(self, status: int, headers: Headers) -> None:
        """Set the answer's head; it leaves with the first bytes."""
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    def put(self, data: bytes) -> None:
        """Send these bytes. Nothing after `finish` or `drop`."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER_BYTES and not self._full:
            self._full = True
            self.on_full()
        self._wake()

    def finish(self, data: bytes) -> None:
        """Send these last bytes and end the answer."""
        self._pieces.append(data)
        self._finished = True
        self._wake()

    def drop(self) -> None:
        """The client is gone: send nothing more and let `pump` return. Idempotent."""
        self._dropped = True
        self._pieces.clear()
        self._wake()

    def forget(self) -> None:
        """Let go of whoever filled it, once `pump` has returned."""
        self.on_full = self.on_room = _nobody

    async def pump(self, send: Send) -> None:
        """Send what comes until the answer has ended or the client is gone."""
        while not self._dropped:
            if not self._pieces:
                await self._wait()
                continue
            if self._head is not None:
                head, self._head = self._head, None
                await send(head)
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            last = self._finished
            await send({"type": "http.response.body", "body": data, "more_body": not last})
            if last:
                return
            if self._full and not self._pieces:
                self._full = False
                self.on_room()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _nobody() -> None:
    """Nobody is left to pause or resume."""
