"""The control process: the API and the console on one port, probes on another."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from prometheus_client import generate_latest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.console.app import create_console
from app.control.application import create_app
from app.control.guard import ControlMetrics
from app.core import log
from app.core.database import connect_engine
from app.core.probe_server import ProbeServer
from app.core.settings import Settings, settings

_GRACE_S = 8
_WATCH_EVERY_S = 2.0
_PING_TIMEOUT_S = 2.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


class DatabaseWatch:
    """Whether the database answers, asked every two seconds; `/health` tells the newest finding."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._problem: str | None = "not asked yet"

    def health(self) -> tuple[bool, dict[str, Any]]:
        return self._problem is None, {"database": self._problem or "ok"}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._problem = await self._ask()
            await asyncio.sleep(_WATCH_EVERY_S)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S), self._engine.connect() as connection:
                await connection.execute(text("SELECT FROM tenant LIMIT 1"))
        except (OSError, TimeoutError, SQLAlchemyError) as error:
            return type(error).__name__
        return None


class Server(uvicorn.Server):
    """uvicorn that ends by returning, so that what was opened around it is closed in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM or SIGINT without raising the signal again afterwards."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.should_exit = True


async def serve(own: Settings) -> None:
    """Serve until SIGTERM or SIGINT; what runs then has eight seconds to end."""
    engine = connect_engine(own.database_url.get_secret_value())
    metrics = ControlMetrics()
    app = create_app(engine, console=create_console(engine, own), metrics=metrics)
    watch = DatabaseWatch(engine)
    probes = ProbeServer(health=watch.health, metrics=lambda: generate_latest(metrics.registry))
    config = uvicorn.Config(
        app,
        host=own.control_host,
        port=own.control_port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
    )
    watching = asyncio.create_task(watch.run())
    await probes.start(own.metrics_host, own.metrics_port)
    _log.info("control_started", extra={"host": own.control_host, "port": own.control_port})
    try:
        await Server(config).serve()
    finally:
        watching.cancel()
        await probes.close()
        await engine.dispose()
        _log.info("control_stopped")


def main() -> None:
    own = settings()
    log.configure("control", level=own.log_level)
    asyncio.run(serve(own))


if __name__ == "__main__":
    main()
