"""edge: what HTTP itself decides before anybody is asked: route, method, size and time of the body."""

from __future__ import annotations

import asyncio
from typing import Any

from app.core.errors import Rejected, RejectReason
from app.gateway.model import Endpoint, Headers, Receive
from app.gateway.protocol import GatewayProtocol

MODELS = "/v1/models"
HEALTH = "/health"
_POST_ROUTES = {endpoint.value: endpoint for endpoint in Endpoint}
_PLAIN_ENCODINGS = (b"", b"identity")


class ClientGone(Exception):
    """The client left before its request was whole: nobody is there to answer."""


def inference_endpoint(scope: dict[str, Any]) -> Endpoint | None:
    """The endpoint that is asked for, None for the routes that are read (GET). Raises Rejected 404, 405."""
    path, method = scope["path"], scope["method"]
    endpoint = _POST_ROUTES.get(path)
    if endpoint is not None:
        _require(method, "POST")
        return endpoint
    if path in (HEALTH, MODELS) or path.startswith(MODELS + "/"):
        _require(method, "GET")
        return None
    raise Rejected(
        RejectReason.ROUTE_UNKNOWN,
        "There is no such route. Those of this port begin with /v1; the console has a port of its own.",
        status=404,
    )


def check_head(headers: Headers, *, limit_bytes: int) -> None:
    """Refuse by its head alone a body that is too large or encoded. Raises Rejected (413, 415)."""
    for name, value in headers:
        if name == b"content-length" and int(value) > limit_bytes:
            raise _too_large(limit_bytes)
        if name == b"content-encoding" and value.strip().lower() not in _PLAIN_ENCODINGS:
            raise Rejected(
                RejectReason.BODY_INVALID,
                "Encoded request bodies are not taken; send JSON as it is.",
                status=415,
            )


async def read_body(
    receive: Receive, connection: GatewayProtocol, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body. Raises Rejected (413, 408), or ClientGone. A timer runs only if it is not all here."""
    if connection.body_arrived:
        return await _collect(receive, limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(receive, limit_bytes)
    except TimeoutError:
        raise Rejected(
            RejectReason.BODY_TIMEOUT,
            f"The body did not come within {timeout_s:g} s.",
            status=408,
            limit=f"{timeout_s:g} s",
        ) from None


async def _collect(receive: Receive, limit_bytes: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message["body"]
    if not message["more_body"]:
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        return body
    pieces, size = [body], len(body)
    while message["more_body"]:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message["body"])
        size += len(message["body"])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
    return b"".join(pieces)


def _too_large(limit_bytes: int) -> Rejected:
    return Rejected(
        RejectReason.BODY_TOO_LARGE,
        f"The body is larger than {limit_bytes} bytes.",
        status=413,
        limit=str(limit_bytes),
    )


def _require(method: str, allowed: str) -> None:
    if method != allowed:
        raise Rejected(
            RejectReason.METHOD_NOT_ALLOWED, f"This route takes {allowed} only.", status=405, allow=allowed
        )
