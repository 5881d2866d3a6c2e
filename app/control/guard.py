"""The outermost layer: a request id, security headers, a bound on bodies, and metrics for every call."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core import ids
from app.core.errors import Rejected, RejectReason

BODY_LIMIT_BYTES = 1 << 20
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_API_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


class ControlMetrics:
    """What the control plane counts; `registry` renders it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter(
            "steelyard_control_requests", "Calls of the control plane.", labels, registry=self.registry
        )
        self.seconds = Histogram(
            "steelyard_control_request_seconds", "Time to answer a call.", ("route",), registry=self.registry
        )


class Guard:
    """ASGI around the app. Sets `request.state.request_id`; never lets an exception reach the server."""

    def __init__(self, app: ASGIApp, *, metrics: ControlMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = ids.request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.perf_counter()
        status = 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _headers(message, scope, request_id=request_id)
            await send(message)

        try:
            await self.app(scope, _bounded(scope, receive), send_guarded)
        except Exception:  # noqa: BLE001 - the app has answered with a 500 and logged it before it re-raised
            status = 500
        finally:
            self._count(scope, status, seconds=time.perf_counter() - began)

    def _count(self, scope: Scope, status: int, *, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)


def _headers(message: Message, scope: Scope, *, request_id: str) -> list[tuple[bytes, bytes]]:
    given = list(message.get("headers", []))
    present = {name.lower() for name, _ in given}
    is_api = scope["path"].startswith(("/api/v1", "/v1"))
    added = _HEADERS + (_API_HEADERS if is_api else [])
    given += [header for header in added if header[0] not in present]
    return [*given, (b"x-request-id", request_id.encode())]


def _bounded(scope: MutableMapping[str, Any], receive: Receive) -> Receive:
    left = BODY_LIMIT_BYTES

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise Rejected(
                RejectReason.BODY_TOO_LARGE,
                "The body is too large.",
                status=413,
                limit=f"{BODY_LIMIT_BYTES} bytes",
            )
        return message

    return receive_bounded
