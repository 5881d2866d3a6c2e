"""The values of one request as they pass from step to step of the data plane."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import msgspec

from app.catalog.snapshot import Key, Model, Tenant
from app.core.ids import RequestId
from app.gateway.terms import Drawn
from billing.journal.model import Admitted
from billing.quota.lease import Hold

Headers = list[tuple[bytes, bytes]]


class Send(Protocol):
    """ASGI's send."""

    async def __call__(self, message: dict[str, Any], /) -> None: ...


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> dict[str, Any]: ...


class Endpoint(StrEnum):
    """What can be asked of a model, by its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class UsageWish(StrEnum):
    """Where a client wants to see usage in a stream: nowhere, at its end, in every chunk."""

    NONE = "none"
    FINAL = "final"
    EVERY = "every"


class Principal(msgspec.Struct, frozen=True):
    """Who asks, and who pays."""

    key: Key
    tenant: Tenant


class Ask(msgspec.Struct, frozen=True):
    """A request's body as far as routing and metering need it.

    body: as it came, but for engine-only fields.   model: the name asked for.   max_tokens: None if the
    client set none.   gave_max_completion_tokens: it used that newer name.   choices: answers for each
    prompt.   is_text: its bytes bound its tokens.   rendered_bytes: of these, JSON that is printed anew.
    """

    endpoint: Endpoint
    body: bytes
    model: str
    streamed: bool
    usage_wish: UsageWish
    max_tokens: int | None
    gave_max_completion_tokens: bool
    choices: int
    prompts: int
    is_text: bool
    rendered_bytes: int
    echo: bool


class Admission(msgspec.Struct, frozen=True):
    """An admitted request: its journal record, its hold, and the limits it runs under.

    max_tokens: for each choice, as the engine is told.   rates: of its hold, what is consumed as it goes.
    headers: that its answer has, whatever it will be.
    """

    record: Admitted
    hold: Hold
    ask: Ask
    principal: Principal
    model: Model
    max_tokens: int
    rates: tuple[Drawn, ...] = ()
    headers: Headers = []

    @property
    def request_id(self) -> RequestId:
        return self.record.request_id
