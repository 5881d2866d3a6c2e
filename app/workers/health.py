"""The worker's own `/health` and `/metrics`, served beside Celery in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from prometheus_client import generate_latest

from app.core.probe_server import ProbeServer


class WorkerHealth:
    """Ready from `mark(ready=True)` on. `facts` are shown with it."""

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        self._facts = facts
        self._ready = False

    def mark(self, *, ready: bool) -> None:
        self._ready = ready

    def serve(self, host: str, port: int) -> None:
        """Listen in a thread that ends with the process; port 0 means no such listener."""
        if port:
            threading.Thread(
                target=asyncio.run, args=[self._serve(host, port)], name="health", daemon=True
            ).start()

    async def _serve(self, host: str, port: int) -> None:
        server = ProbeServer(health=lambda: (self._ready, self._facts()), metrics=generate_latest)
        await server.start(host, port)
        await asyncio.Event().wait()
