"""Serves the gateway on a port that several processes share, and stops in order."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from app.gateway.protocol import GatewayProtocol

_BACKLOG = 2048
_SWEEP_S = 1.0


class PortTaken(Exception):
    """The port belongs to another program (or another user): ours share it with SO_REUSEPORT."""


def listen(host: str, port: int) -> socket.socket:
    """A socket on this port, which other gateway processes share. Raises PortTaken, OSError.

    It listens when it is served: the kernel spreads connections over all that listen, ready or not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortTaken(
                f"port {port} on {host} can't be used: {error.strerror}. "
                "Another program listens there; stop it or set STEELYARD_GATEWAY_PORT."
            ) from error
        raise
    listener.setblocking(False)
    return listener


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers (the process has its own) and with a sweep of its connections."""

    def __init__(self, app: Any, *, head_timeout_s: float, stall_timeout_s: float, grace_s: int) -> None:
        bounded = type(
            "BoundedProtocol",
            (GatewayProtocol,),
            {"head_timeout_s": head_timeout_s, "stall_timeout_s": stall_timeout_s},
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=grace_s,
                backlog=_BACKLOG,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none: the process stops the server itself."""
        yield

    def stop(self) -> None:
        """Accept nothing more; what runs may end until the grace is over. `serve` then returns."""
        self.should_exit = True

    async def run_on(self, listener: socket.socket) -> None:
        """Serve on this socket until `stop`."""
        sweeper = asyncio.get_running_loop().create_task(self._sweep_on(), name="sweep")
        try:
            await self.serve(sockets=[listener])
        finally:
            sweeper.cancel()
            listener.close()

    async def _sweep_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = loop.time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, GatewayProtocol):
                    connection.sweep(now)
