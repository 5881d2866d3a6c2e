"""The edge of the API: every route runs through here, and reads as this sentence.

Begin one transaction → who calls, may they → was it asked before → act → write the trail →
remember the answer → commit → answer. Whatever raises on the way rolls all of it back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.responses import JSONResponse

from app.control.auth import authenticate
from app.control.call import Call, Need
from app.core.clock import Clock, from_ms
from app.core.errors import Conflict
from app.identity import audit, idempotency
from app.identity.audit import Trail
from app.identity.idempotency import Answer, Mark

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Edge:
    """What the edge needs of its surroundings."""

    engine: AsyncEngine
    clock: Clock

    async def act(self, request: Request, need: Need, *, handle: Handler) -> Response:
        """The answer to one call, given after its transaction is committed."""
        body = await request.body()
        async with self.engine.begin() as connection:
            now = from_ms(self.clock.now_ms())
            actor = await authenticate(request, connection, now=now)
            actor.require(need.scope)
            call = _call(request, connection=connection, actor=actor, now=now)
            request.state.call = call
            if not need.writes or not call.idempotency_key:
                response = await handle(request)
                await audit.append(connection, call.trail, now=now)
                return response
            return await _once(request, call, body=body, handle=handle)


class EdgeRoute(APIRoute):
    """A route of the API. Raises TypeError at its making if it doesn't say what it needs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(path, endpoint, **kwargs)
        calls: list[object] = [each.call for each in self.dependant.dependencies]
        needs = [call for call in calls if isinstance(call, Need)]
        if len(needs) != 1:
            raise TypeError(f"{path}: a route declares exactly one need")
        self.need = needs[0]
        self.openapi_extra = {"x-required-scope": self.need.scope.value} | (self.openapi_extra or {})

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def act(request: Request) -> Response:
            edge: Edge = request.app.state.edge
            return await edge.act(request, self.need, handle=handle)

        return act


def _call(request: Request, *, connection: Any, actor: Any, now: datetime) -> Call:
    trail = Trail(actor.id, request.client.host if request.client else None)
    key = request.headers.get("idempotency-key")
    usable = key if key and len(key) <= idempotency.MAX_LENGTH else None
    return Call(connection, actor, trail, now, request.state.request_id, usable)


async def _once(request: Request, call: Call, *, body: bytes, handle: Handler) -> Response:
    assert call.idempotency_key is not None
    asked = f"{request.method} {request.url.path}?{request.url.query}\n".encode() + body
    mark = Mark(call.actor.id, call.idempotency_key, hashlib.sha256(asked).digest())
    stored = await idempotency.recall(call.connection, mark)
    if stored is not None:
        return _replayed(stored)
    response = await handle(request)
    await audit.append(call.connection, call.trail, now=call.now)
    answer = json.loads(bytes(response.body)) if call.shown_once is None else {"shown_once": call.shown_once}
    await idempotency.remember(call.connection, mark, answer=Answer(response.status_code, answer))
    return response


def _replayed(stored: Answer) -> Response:
    if "shown_once" in stored.body:
        raise Conflict(
            "This was done before; its secret was shown once and is not kept. Use a new Idempotency-Key.",
            **stored.body["shown_once"],
        )
    return JSONResponse(stored.body, stored.status, headers={"Idempotent-Replayed": "true"})
