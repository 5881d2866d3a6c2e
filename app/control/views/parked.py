"""`/parked-records`, `/usage-conflicts`, `/journal-damages`: what the settler set aside, for the operator."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Path, Query
from pydantic import Field

from app.control.call import Call, Reads, Writes
from app.control.schemas import In, Name, Out, Page, PagingQuery
from app.control.views.routes import router
from app.core.ids import IncarnationId
from app.core.money import format_picos
from app.identity.errors import invalid
from app.identity.model import Scope
from billing.journal import conflicts, damages, parking

api = router("settling")
MOST_ROWS = 500
_Id = Annotated[int, Path(ge=1, lt=2**63)]
_Reader = Annotated[Call, Depends(Reads(Scope.AUDIT_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.CREDIT_WRITE))]
_Resolved = Annotated[bool, Query(description="Those that were resolved, not those that wait.")]


class BecauseIn(In):
    reason: Name = Field(examples=["A test tenant that was never priced"])


class HoldOut(Out):
    """What a parked record still takes of an allowance."""

    allowance_id: str
    amount: str


class ChargeOut(Out):
    """What a parked record would have charged."""

    tenant_id: str
    project_id: str
    key_id: str
    model: str
    outcome: str
    usage_source: str
    tokens: int
    cost: str
    currency: str


class ParkedOut(Out):
    """A record that could not be posted. Nothing of it is billed; what it holds stays counted until then."""

    id: str
    incarnation_id: str
    file_offset: int
    request_id: str | None
    reason: str = Field(description="Why it could not be posted.")
    holds: list[HoldOut]
    charge: ChargeOut | None = Field(description="Null if it is no charge: nothing can be retried.")
    parked_at: datetime
    resolved_at: datetime | None
    resolution: str | None = Field(description="`posted` or `dismissed`.")
    resolved_by: str | None
    resolved_because: str | None


class ConflictOut(Out):
    """A second settlement of a request that says something else. It is kept, and never charged."""

    request_id: str
    incarnation_id: str
    payload_hash: str
    posted_hash: str
    seen_at: datetime


class DamageOut(Out):
    """Bytes of a journal that no writer wrote; a copy lies in the settler's `quarantine` folder as `id`."""

    id: str
    incarnation_id: str
    file_offset: int
    byte_count: int
    found_at: datetime
    outstanding: str = Field(description="What the incarnation still holds: the most a release may cost.")
    released_at: datetime | None
    released_by: str | None
    released_because: str | None


@api.get("/parked-records", summary="List records that could not be posted, newest first")
async def list_parked(paging: PagingQuery, call: _Reader, *, resolved: _Resolved = False) -> Page[ParkedOut]:
    if paging.after is not None and not (paging.after.isascii() and paging.after.isdigit()):
        invalid("The cursor is the `next` of a page of the same question.", param="after")
    before = None if paging.after is None else min(int(paging.after), 2**63 - 1)
    rows = await parking.list_parked(call.connection, resolved=resolved, before=before, limit=paging.fetch)
    return paging.page(rows, _parked)


@api.get("/parked-records/{parked_id}", summary="Show a record that could not be posted")
async def show_parked(parked_id: _Id, call: _Reader) -> ParkedOut:
    return _parked(await parking.get(call.connection, parked_id))


@api.post("/parked-records/{parked_id}/retry", summary="Post a parked record whose cause was mended")
async def retry_parked(parked_id: _Id, call: _Writer) -> ParkedOut:
    """409 says what is still wrong with it. A request that has an event by now is not charged again."""
    before = _parked(await parking.get(call.connection, parked_id))
    await parking.retry(call.connection, parked_id, now=call.now, by=call.actor.id)
    return await _resolved(call, parked_id, action="parked_record.retry", before=before)


@api.post("/parked-records/{parked_id}/dismiss", summary="Give a parked record up: it is never billed")
async def dismiss_parked(parked_id: _Id, body: BecauseIn, call: _Writer) -> ParkedOut:
    """Frees what it holds. Its bytes stay; its engine's tokens show in reconciliation without an event."""
    before = _parked(await parking.get(call.connection, parked_id))
    await parking.dismiss(call.connection, parked_id, by=call.actor.id, because=body.reason, now=call.now)
    return await _resolved(call, parked_id, action="parked_record.dismiss", before=before)


@api.get("/usage-conflicts", summary="List second settlements that say something else")
async def list_conflicts(call: _Reader) -> list[ConflictOut]:
    rows = await conflicts.list_conflicts(call.connection, limit=MOST_ROWS)
    return [
        ConflictOut(
            request_id=row.id,
            incarnation_id=row.incarnation_id,
            payload_hash=row.payload_hash.hex(),
            posted_hash=row.posted_hash.hex(),
            seen_at=row.seen_at,
        )
        for row in rows
    ]


@api.get("/journal-damages", summary="List damaged places of journals")
async def list_damages(call: _Reader) -> list[DamageOut]:
    return [_damage(row) for row in await damages.list_damages(call.connection, limit=MOST_ROWS)]


@api.post("/journal-damages/{incarnation_id}/release", summary="Close a damaged incarnation")
async def release_damaged(
    incarnation_id: Annotated[str, Path(max_length=200)], body: BecauseIn, call: _Writer
) -> list[DamageOut]:
    """Its unused leases return. What it spent in the damaged part is never billed; that was the cost."""
    await damages.release(
        call.connection,
        IncarnationId(incarnation_id),
        by=call.actor.id,
        because=body.reason,
        now=call.now,
    )
    call.trail.note("incarnation.release", incarnation_id, after={"reason": body.reason})
    rows = await damages.list_damages(call.connection, limit=MOST_ROWS)
    return [_damage(row) for row in rows if row.incarnation_id == incarnation_id]


async def _resolved(call: Call, parked_id: int, *, action: str, before: ParkedOut) -> ParkedOut:
    after = _parked(await parking.get(call.connection, parked_id))
    call.trail.note(
        action, after.id, before=before.model_dump(mode="json"), after=after.model_dump(mode="json")
    )
    return after


def _parked(row: parking.Parked) -> ParkedOut:
    holds = [HoldOut(allowance_id=allowance, amount=format_picos(amount)) for allowance, amount in row.holds]
    return ParkedOut(**{**row._asdict(), "holds": holds, "charge": _charge(row)})


def _charge(row: parking.Parked) -> ChargeOut | None:
    if row.charge is None:
        return None
    admitted, settled = row.charge
    return ChargeOut(
        tenant_id=admitted.tenant_id,
        project_id=admitted.project_id,
        key_id=admitted.key_id,
        model=admitted.model_name,
        outcome=settled.outcome,
        usage_source=settled.usage_source,
        tokens=settled.usage.total,
        cost=format_picos(settled.cost_picos),
        currency=admitted.currency,
    )


def _damage(row: damages.Found) -> DamageOut:
    return DamageOut(**{**row._asdict(), "outstanding": format_picos(row.outstanding)})
