"""`/reconciliation`: whether engines, events, roll-ups, ledger and wallets agree; for the operator alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from pydantic import Field, field_validator
from sqlalchemy import RowMapping

from app.catalog.engines import list_engines
from app.control.call import Call, Reads, Writes
from app.control.edge import Edge
from app.control.schemas import In, Out
from app.control.views.routes import router
from app.core.settings import settings
from app.identity.errors import invalid
from app.identity.model import Scope
from billing.reconcile import repository
from billing.reconcile.days import day_of
from billing.reconcile.explain import WORDS
from billing.reconcile.model import Pair
from billing.reconcile.repository import Asked
from billing.reconcile.service import Terms, reconcile

api = router("reconciliation")
MOST_DAYS = 366
MOST_GAPS = 500
_EARLIEST, _LATEST = date(2000, 1, 1), date(9998, 1, 1)
_Reader = Annotated[Call, Depends(Reads(Scope.AUDIT_READ))]
_Name = Annotated[str | None, Query(max_length=200)]
_Day = Annotated[date, Path(description="The UTC day: 2026-12-01.")]
_Lag = Annotated[
    int | None,
    Query(ge=0, le=86_400, description="Compare engines' counters from this age on; null: the usual one."),
]


class ProofOut(Out):
    """When a pair of books was last proven; `day` is null for a pair that stands as it is now."""

    pair: str
    day: date | None
    proven_at: datetime
    scanned: int = Field(description="Rows that were read.")
    gaps: int
    took_ms: int


class GapOut(Out):
    """Where two books differ: `left` and `right` in the order of the pair's name; null: nothing at all."""

    id: int
    pair: str
    day: date | None
    kind: str
    scope: str
    unit: str = Field(description="`picos` (10⁻¹² of the currency's unit), `tokens` or `records`.")
    left: str | None
    right: str | None
    difference: str
    explanation: str
    tenant_id: str | None
    backend_id: str | None
    model_id: str | None
    first_seen_at: datetime
    last_seen_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    acknowledged_because: str | None


class ShareOut(Out):
    """How much of a counter one kind of events accounts for: anything from `low` to `high`."""

    kind: str
    meaning: str
    requests: int
    recorded: int
    low: int
    high: int


class EngineDayOut(Out):
    """A backend's day against its events, in tokens. `counted` is null if the engine did not tell."""

    day: date
    backend_id: str
    model_id: str
    model_name: str
    meter: str = Field(description="`prompt` (cached part too) or `generated`.")
    state: str
    begins_at: datetime | None
    ends_at: datetime | None
    readings: int
    restarts: int
    counted: int | None
    recorded: int = Field(description="By the events, as this engine counts: a prompt once per answer.")
    billed: int
    unexplained: int | None
    explained: list[ShareOut]
    requests: int
    lost: int
    is_final: bool
    computed_at: datetime

    @field_validator("explained", mode="before")
    @classmethod
    def _with_words(cls, shares: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**share, "meaning": WORDS.get(share["kind"], "")} for share in shares]


class AcknowledgeIn(In):
    because: Annotated[str, Field(min_length=1, max_length=500, description="What was found out.")]


class ReportOut(Out):
    """What is known of the days from `first` to `last`, both included. `agree`: no gap stands unseen."""

    first: date
    last: date
    agree: bool
    proofs: list[ProofOut]
    engines: list[EngineDayOut]
    gaps: list[GapOut] = Field(description=f"What stands, at most {MOST_GAPS}: unseen ones first.")


@api.get("/reconciliation", summary="Show what reconciliation found, by day, backend and model")
async def show_reconciliation(
    call: _Reader,
    *,
    first: Annotated[date | None, Query(alias="from", description="UTC day; null: today.")] = None,
    last: Annotated[date | None, Query(alias="to", description="UTC day, included; null: today.")] = None,
    backend: _Name = None,
    model: Annotated[str | None, Query(max_length=200, description="Id or name.")] = None,
) -> ReportOut:
    today = day_of(call.now)
    first, last = first or min(today, last or today), last or today
    if not (timedelta(0) <= last - first < timedelta(days=MOST_DAYS)):
        invalid(f"The days go forward, and are at most {MOST_DAYS}.", param="from")
    return await _report(call, Asked(first, last, backend, model))


@api.get("/reconciliation/latest", summary="Show what the last reconciliation found")
async def show_latest(call: _Reader) -> ReportOut:
    latest = await repository.latest_day(call.connection) or day_of(call.now)
    return await _report(call, Asked(latest, latest))


@api.post("/reconciliation/{day}", summary="Reconcile a day now: all pairs of books, or some")
async def reconcile_day(
    request: Request,
    day: _Day,
    call: Annotated[Call, Depends(Writes(Scope.AUDIT_READ))],
    *,
    pair: Annotated[list[Pair] | None, Query(description="Only these; several by repetition.")] = None,
    lag_s: _Lag = None,
) -> ReportOut:
    if not _EARLIEST <= day <= min(day_of(call.now), _LATEST):
        invalid("A day that has begun can be reconciled.", param="day")
    edge: Edge = request.app.state.edge
    lag = timedelta(seconds=settings().reconcile_lag_s if lag_s is None else lag_s)
    await reconcile(
        call.connection,
        day,
        pairs=tuple(pair or Pair),
        fleet=await list_engines(call.connection, removed=True),
        terms=Terms(lag=lag),
        clock=edge.clock,
    )
    return await _report(call, Asked(day, day))


@api.post("/reconciliation/gaps/{gap_id}/acknowledge", summary="Say that a gap was looked into")
async def acknowledge_gap(
    gap_id: Annotated[int, Path(ge=1, lt=1 << 63)],
    body: AcknowledgeIn,
    call: Annotated[Call, Depends(Writes(Scope.CREDIT_WRITE))],
) -> GapOut:
    row = await repository.acknowledge(
        call.connection, gap_id, by=call.actor.id, because=body.because, now=call.now
    )
    call.trail.note("reconciliation.acknowledge", str(gap_id), after={"because": body.because})
    return _gap(row._mapping)


async def _report(call: Call, asked: Asked) -> ReportOut:
    gaps = await repository.open_gaps(call.connection, asked, limit=MOST_GAPS)
    return ReportOut(
        first=asked.first,
        last=asked.last,
        agree=all(gap._mapping["acknowledged_at"] for gap in gaps),
        proofs=[ProofOut.model_validate(row) for row in await repository.list_proofs(call.connection, asked)],
        engines=[
            EngineDayOut.model_validate(row) for row in await repository.list_days(call.connection, asked)
        ],
        gaps=[_gap(row._mapping) for row in gaps],
    )


def _gap(row: RowMapping) -> GapOut:
    facts = {name: row[name] for name in GapOut.model_fields if name in row}
    left, right = (None if row[side] is None else int(row[side]) for side in ("left_value", "right_value"))
    return GapOut(
        **facts,
        left=None if left is None else str(left),
        right=None if right is None else str(right),
        difference=str((left or 0) - (right or 0)),
    )
