"""`/v1/usage/events`: every usage event and correction as a line that the tenant can check by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncEngine

from app.control.call import Call, Reads
from app.control.cursor import read_cursor, write_cursor
from app.control.reach import reach, tenant_within
from app.control.schemas import Out
from app.control.views.routes import router
from app.identity.errors import invalid
from app.identity.model import Scope
from app.insights import events
from app.insights.events import EventFilter, Place, Progress, Told
from app.insights.usage import UsageFilter

api = router("usage", prefix="/v1/usage")
NDJSON = "application/x-ndjson"
PAGE = "usage.page"
MOST_LINES = 100_000
MOST_WINDOWS = 10
"""Windows of the chain that a page looks through, though it finds nothing: then it tells where to go on."""
_BATCH = 500
_Reader = Annotated[Call, Depends(Reads(Scope.USAGE_READ))]
_Id = Annotated[str | None, Query(max_length=200)]
_FROM = "A day `YYYY-MM-DD` of the chain (UTC), or a moment (RFC 3339) of admission; included."
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A line of JSON for each event or correction, in the order of the chain; at the end "
        f'`{{"object": "{PAGE}", "lines", "next"}}`: pass `next` as `after`, null: that was all.',
        "content": {NDJSON: {"schema": {"type": "string"}}},
    }
}


class HeadOut(Out):
    """The last line of a day. Keep it: what it fixes can't be changed unseen."""

    tenant_id: str
    day: date = Field(description="UTC, of the chain.")
    sequence: int = Field(description="How many lines the day has.")
    hash: str = Field(description="Hex; fixes every line up to this one.")
    open: bool = Field(description="The tenant's newest day: more lines may follow.")


class Heads(Out):
    object: str = "list"
    data: list[HeadOut]


class Asked:
    """The parameters of a download."""

    def __init__(
        self,
        *,
        start: Annotated[str | None, Query(alias="from", max_length=40, description=_FROM)] = None,
        end: Annotated[str | None, Query(alias="to", max_length=40, description="Not included.")] = None,
        tenant_id: _Id = None,
        project_id: _Id = None,
        key_id: _Id = None,
        model: Annotated[str | None, Query(max_length=200, description="Id or name.")] = None,
        withheld: Annotated[
            bool, Query(description="Show what the filters leave out by its digest, to follow the chain.")
        ] = False,
        limit: Annotated[int, Query(ge=1, le=MOST_LINES, description="Most lines of a page.")] = 10_000,
        after: Annotated[str | None, Query(max_length=400, description="`next` of the page before.")] = None,
    ) -> None:
        self.first_day, self.start = _edge(start, param="from")
        self.end_day, self.end = _edge(end, param="to")
        is_backward = self.first_day and self.end_day and self.end_day < self.first_day
        if is_backward or (self.start and self.end and self.end < self.start):
            invalid("`to` lies before `from`.", param="to")
        self.tenant_id = tenant_id
        self.only = UsageFilter(
            project_ids=(project_id,) if project_id else (), key_ids=(key_id,) if key_id else ()
        )
        self.models = [model] if model else []
        self.withheld = withheld
        self.limit = limit
        self.after = after


@api.get(
    "/events",
    summary="Download usage events and corrections, each linked to the one before",
    response_class=StreamingResponse,
    responses=_RESPONSES,
)
async def download_events(
    asked: Annotated[Asked, Depends()], request: Request, call: _Reader
) -> StreamingResponse:
    tenant_id = _one_tenant(call, asked.tenant_id)
    held = await reach(call, asked.only, models_asked=asked.models)
    only = EventFilter(
        tenant_id=tenant_id,
        first_day=asked.first_day,
        end_day=asked.end_day,
        start=asked.start,
        end=asked.end,
        project_ids=held.project_ids,
        key_ids=held.key_ids,
        model_ids=held.model_ids,
        withhold=asked.withheld,
    )
    after = place_of(asked.after, tenant_id=tenant_id)
    # The first lines are read within the call, so that what goes wrong at once has its error status.
    first = await events.read_on(
        call.connection, only, progress=Progress(after), limit=min(_BATCH, asked.limit)
    )
    engine: AsyncEngine = request.app.state.edge.engine
    return StreamingResponse(stream_page(engine, only, first=first, limit=asked.limit), media_type=NDJSON)


@api.get("/events/heads", summary="Show the last hash of each day of the chain; keep them")
async def show_heads(
    call: _Reader,
    *,
    start: Annotated[date | None, Query(alias="from", description="Day, included; null: the first.")] = None,
    end: Annotated[date | None, Query(alias="to", description="Day, not included; null: no end.")] = None,
    tenant_id: _Id = None,
) -> Heads:
    owner = _one_tenant(call, tenant_id)
    heads = await events.list_heads(call.connection, owner, first=start or date.min, end=end or date.max)
    data = [
        HeadOut(
            tenant_id=owner, day=head.day, sequence=head.sequence, hash=head.hash.hex(), open=head.is_open
        )
        for head in heads
    ]
    return Heads(data=data)


async def stream_page(
    engine: AsyncEngine,
    only: EventFilter,
    *,
    first: tuple[list[Told], Progress],
    limit: int,
    most_windows: int = MOST_WINDOWS,
) -> AsyncIterator[bytes]:
    """The lines of a page and its end. Between two batches no connection is held, however slow the reader."""
    (batch, progress), sent = first, 0
    while True:
        sent += len(batch)
        if batch:
            yield b"".join(told.text + b"\n" for told in batch)
        is_new_window = progress.until is None and progress.after is not None
        if progress.is_end or (is_new_window and progress.windows >= most_windows):
            break
        async with engine.connect() as connection:
            # Of a full page, one line more tells whether another page follows.
            wanted = min(_BATCH, limit - sent) or 1
            batch, further = await events.read_on(connection, only, progress=progress, limit=wanted)
        if sent == limit:
            progress = progress._replace(is_end=further.is_end and not batch)
            break
        progress = further
    following = None
    if not progress.is_end and progress.after is not None:
        following = _cursor(progress.after, tenant_id=only.tenant_id)
    end = {"object": PAGE, "version": 1, "lines": sent, "next": following}
    yield msgspec.json.encode(end, order="sorted") + b"\n"


def _one_tenant(call: Call, asked: str | None) -> str:
    """The tenant whose chain is read. Raises Rejected (400) if an operator names none."""
    tenant_id = tenant_within(call, asked)
    if tenant_id is None:
        invalid("Say whose events: each tenant has a chain of its own.", param="tenant_id")
    return tenant_id


def _edge(value: str | None, *, param: str) -> tuple[date | None, datetime | None]:
    """An edge of the range: a day of the chain, or a moment. Raises Rejected (400) if it is neither."""
    if value is None:
        return None, None
    try:
        if len(value) == len("2026-12-01"):
            return date.fromisoformat(value), None
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or not 1970 < moment.year < 9999:
            raise ValueError("a moment has an offset")
        return None, moment.astimezone(UTC)
    except ValueError:
        invalid("Name a day, 2026-12-01, or a moment with its offset, 2026-12-01T00:00:00Z.", param=param)


def _cursor(place: Place, *, tenant_id: str) -> str:
    return write_cursor([str(place.sequence), place.day.isoformat(), tenant_id])


def place_of(after: str | None, *, tenant_id: str) -> Place | None:
    """The place behind a cursor. Raises Rejected (400) for one of another tenant's chain."""
    read = read_cursor(after, fields=3)
    if read is None:
        return None
    sequence, day, owner = read
    try:
        place = Place(date.fromisoformat(day), int(sequence))
    except ValueError:
        invalid("The cursor is the `next` of a page of the same question.", param="after")
    if owner != tenant_id:
        invalid("The cursor is of another chain.", param="after")
    return place
