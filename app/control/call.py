"""One call of the API: who calls, in which transaction, leaving which trail; and what a route needs.

Every route names what it needs by one dependency (`Reads`, `Writes` or `WritesMoney`); the edge
finds it and checks it on the server before the view runs. A route without one doesn't start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Header, Request
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import TenantId
from app.identity.audit import Trail
from app.identity.idempotency import MAX_LENGTH
from app.identity.model import Actor, Scope

_KEY_DOC = "Same key and same body: the stored answer again, for 30 days. Same key, other body: 409."


@dataclass
class Call:
    """What a view works with.   shown_once: ids to name on a replay of an answer that held a secret."""

    connection: AsyncConnection
    actor: Actor
    trail: Trail
    now: datetime
    request_id: str
    idempotency_key: str | None = None
    shown_once: dict[str, Any] | None = field(default=None)

    @property
    def within(self) -> TenantId | None:
        """The one tenant that the caller reaches; None: all."""
        return self.actor.tenant_id

    def hide_answer(self, **ids: str) -> None:
        """Keep this answer out of the idempotency store, because it holds a secret; keep these ids."""
        self.shown_once = ids


class Need:
    """A dependency that hands over the call; the edge has checked `scope` before."""

    writes = False
    money = False

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


class Reads(Need):
    """For a route that changes nothing."""

    def __call__(self, request: Request) -> Call:
        return _call_of(request)


class Writes(Need):
    """For a route that changes something: audited, and repeatable with an Idempotency-Key."""

    writes = True

    def __call__(
        self,
        request: Request,
        idempotency_key: Annotated[
            str | None, Header(min_length=1, max_length=MAX_LENGTH, description=_KEY_DOC)
        ] = None,
    ) -> Call:
        return _call_of(request)


class WritesMoney(Need):
    """For a route that moves money: an Idempotency-Key is a must."""

    writes = True
    money = True

    def __call__(
        self,
        request: Request,
        idempotency_key: Annotated[str, Header(min_length=1, max_length=MAX_LENGTH, description=_KEY_DOC)],
    ) -> Call:
        return _call_of(request)


def _call_of(request: Request) -> Call:
    call = request.state.call
    assert isinstance(call, Call)
    return call
