"""The routes that only read: `/v1/models`, `/v1/models/{id}`, `/health`."""

from __future__ import annotations

from typing import Any

import msgspec

from app.catalog.snapshot import Model, Snapshot
from app.core.clock import Clock
from app.gateway import auth
from app.gateway.edge import HEALTH, MODELS
from app.gateway.model import Headers, Send


async def answer_read(path: str, headers: Headers, *, snapshot: Snapshot, clock: Clock, send: Send) -> None:
    """Answer a GET. Raises Rejected (401, 403, 404)."""
    if path == HEALTH:
        await _send_json(send, {"status": "ok"})
        return
    key = auth.find_key(headers, snapshot)
    principal = auth.authorize(key, snapshot, now_ms=clock.now_ms())
    if path == MODELS:
        models = [_shown(model) for model in auth.usable_models(principal, snapshot)]
        await _send_json(send, {"object": "list", "data": models})
    else:
        name = path[len(MODELS) + 1 :]
        await _send_json(send, _shown(auth.choose_model(name, principal, snapshot=snapshot)))


def _shown(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_ms // 1000,
        "owned_by": "steelyard",
        "context_limit": model.context_limit,
        "max_output_tokens": model.max_output_tokens,
    }


async def _send_json(send: Send, value: object) -> None:
    body = msgspec.json.encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
