"""What reconciliation keeps: readings, days of engines, when a pair was proven, gaps from first to last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import ColumnElement, Row, and_, case, delete, exists, func, null, or_, select, text, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Rejected, RejectReason
from app.core.ids import BackendId
from billing.reconcile.days import bounds, day_of
from billing.reconcile.model import EngineDay, Gap, Pair, Proof, Reading
from billing.reconcile.tables import engine_day, engine_reading, reconcile_gap, reconcile_proof

_ONE_KEEPER = text("SELECT pg_advisory_xact_lock(hashtextextended('steelyard reconcile', 0))")
PRUNED_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Asked:
    """Which part of the report.   first, last: UTC days, both included."""

    first: date
    last: date
    backend_id: str | None = None
    model: str | None = None


async def keep_readings(connection: AsyncConnection, readings: Mapping[BackendId, Reading]) -> None:
    """Add a look at several engines. The same moment of one twice is one reading."""
    rows = [
        {"backend_id": backend_id, "at": reading.at, **asdict(reading.counters)}
        for backend_id, reading in readings.items()
    ]
    if rows:
        await connection.execute(insert(engine_reading).on_conflict_do_nothing(), rows)


async def prune_readings(connection: AsyncConnection, *, now: datetime, keep: timedelta) -> int:
    """How many readings are gone: of days that are final, and older than `keep`. At most `PRUNED_AT_ONCE`."""
    reading, day = engine_reading.c, engine_day.c
    is_final = exists().where(
        day.backend_id == reading.backend_id,
        day.day == func.date(func.timezone("UTC", reading.at)),
        day.is_final,
    )
    whole_days = bounds(day_of(now - keep))[0]
    old = (
        select(reading.backend_id, reading.at).where(reading.at < whole_days, is_final).limit(PRUNED_AT_ONCE)
    ).subquery()
    gone = delete(engine_reading).where(reading.backend_id == old.c.backend_id, reading.at == old.c.at)
    return (await connection.execute(gone)).rowcount


async def lock(connection: AsyncConnection) -> None:
    """Nobody else keeps results until the transaction ends."""
    await connection.execute(_ONE_KEEPER)


async def keep_days(connection: AsyncConnection, days: Sequence[EngineDay], *, now: datetime) -> None:
    """Keep each backend's day as it is now; one that is final stays as it was."""
    rows = [
        {**asdict(each), "meter": each.meter.value, "state": each.state.value, "computed_at": now}
        for each in days
    ]
    if not rows:
        return
    statement = insert(engine_day)
    keys = ("day", "backend_id", "meter")
    changed = {
        column.name: statement.excluded[column.name] for column in engine_day.c if column.name not in keys
    }
    await connection.execute(
        statement.on_conflict_do_update(index_elements=keys, set_=changed, where=~engine_day.c.is_final), rows
    )


async def keep_proof(connection: AsyncConnection, proof: Proof, *, now: datetime, took_ms: int) -> None:
    """Keep that a pair was proven, its gaps as they are now; those it no longer has are resolved,
    unless it has more than it tells.

    Under `lock`.
    """
    at = {"pair": proof.pair.value, "day": proof.day}
    told = {"proven_at": now, "scanned": proof.scanned, "gaps": len(proof.gaps), "took_ms": took_ms}
    statement = insert(reconcile_proof).values(**at, **told)
    await connection.execute(statement.on_conflict_do_update(index_elements=["pair", "day"], set_=told))
    for gap in proof.gaps:
        await connection.execute(_seen(gap, day=proof.day, now=now))
    if proof.is_cut:  # what was not told may still stand
        return
    gone = reconcile_gap.c
    same_day = gone.day.is_(None) if proof.day is None else gone.day == proof.day
    unseen = (gone.pair == proof.pair.value, same_day, gone.resolved_at.is_(None), gone.last_seen_at < now)
    await connection.execute(update(reconcile_gap).where(*unseen).values(resolved_at=now))


async def open_gaps(
    connection: AsyncConnection, asked: Asked | None, *, limit: int
) -> Sequence[Row[tuple[object, ...]]]:
    """Gaps that stand, of the days asked for and of pairs without day; first those that nobody has seen."""
    gap = reconcile_gap.c
    query = select(reconcile_gap).where(gap.resolved_at.is_(None))
    if asked is not None:
        query = query.where(or_(gap.day.is_(None), gap.day.between(asked.first, asked.last)))
        if asked.backend_id is not None:
            query = query.where(gap.backend_id == asked.backend_id)
    return (
        await connection.execute(query.order_by(gap.acknowledged_at.is_not(None), gap.id).limit(limit))
    ).all()


async def acknowledge(
    connection: AsyncConnection, gap_id: int, *, by: str, because: str, now: datetime
) -> Row[tuple[object, ...]]:
    """A gap that stands, marked as looked into: it is shown and no longer alarms, until its numbers change.

    Raises Rejected (404) if no such gap stands.
    """
    gap = reconcile_gap.c
    marked = {"acknowledged_at": now, "acknowledged_by": by, "acknowledged_because": because}
    statement = update(reconcile_gap).where(gap.id == gap_id, gap.resolved_at.is_(None)).values(marked)
    found: Row[tuple[object, ...]] | None = (
        await connection.execute(statement.returning(reconcile_gap))
    ).one_or_none()
    if found is None:
        raise Rejected(RejectReason.NOT_FOUND, "no such gap stands", status=404, id=gap_id)
    return found


async def open_counts(connection: AsyncConnection) -> dict[str, int]:
    """How many gaps stand that nobody acknowledged, by pair."""
    gap = reconcile_gap.c
    standing = (gap.resolved_at.is_(None), gap.acknowledged_at.is_(None))
    query = select(gap.pair, func.count()).where(*standing).group_by(gap.pair)
    return {pair: int(count) for pair, count in await connection.execute(query)}


async def list_days(connection: AsyncConnection, asked: Asked) -> Sequence[Row[tuple[object, ...]]]:
    """Engines' days in the order of day, model and backend."""
    day = engine_day.c
    only: list[ColumnElement[bool]] = [day.day.between(asked.first, asked.last)]
    if asked.backend_id is not None:
        only.append(day.backend_id == asked.backend_id)
    if asked.model is not None:
        only.append(or_(day.model_id == asked.model, day.model_name == asked.model))
    query = (
        select(engine_day).where(*only).order_by(day.day, day.model_name, day.backend_id, day.meter.desc())
    )
    return (await connection.execute(query)).all()


async def list_proofs(connection: AsyncConnection, asked: Asked) -> Sequence[Row[tuple[object, ...]]]:
    """When each pair of the days asked for was proven, and each pair without day."""
    proof = reconcile_proof.c
    within = or_(proof.day.is_(None), proof.day.between(asked.first, asked.last))
    query = select(reconcile_proof).where(within)
    rows = (await connection.execute(query.order_by(proof.day.asc().nulls_first()))).all()
    order = {pair.value: number for number, pair in enumerate(Pair)}
    return sorted(rows, key=lambda row: (row.day or date.min, order.get(row.pair, len(order))))


async def latest_day(connection: AsyncConnection) -> date | None:
    """The last day that was proven."""
    found: date | None = (await connection.execute(select(func.max(reconcile_proof.c.day)))).scalar_one()
    return found


async def stalest_day(connection: AsyncConnection, *, before: date) -> date | None:
    """Of all days with events before a given one, the one that was proven longest ago, or never."""
    found: date | None = (await connection.execute(_STALEST, {"before": before})).scalar_one_or_none()
    return found


_STALEST = text("""
SELECT d.day FROM (
  SELECT generate_series((SELECT min(bucket) AT TIME ZONE 'UTC' FROM usage_rollup)::date,
    CAST(:before AS date) - 1, '1 day')::date AS day) d
LEFT JOIN reconcile_proof p ON p.day = d.day AND p.pair = 'events_rollups'
ORDER BY p.proven_at NULLS FIRST, d.day LIMIT 1
""")


def _seen(gap: Gap, *, day: date | None, now: datetime) -> Insert:
    statement = insert(reconcile_gap).values(
        pair=gap.pair.value,
        day=day,
        scope=gap.scope,
        tenant_id=gap.tenant_id,
        backend_id=gap.backend_id,
        model_id=gap.model_id,
        unit=gap.unit.value,
        kind=gap.kind,
        left_value=gap.left,
        right_value=gap.right,
        explanation=gap.explanation,
        first_seen_at=now,
        last_seen_at=now,
    )
    changing = ("left_value", "right_value", "explanation", "last_seen_at")
    told, known = statement.excluded, reconcile_gap.c
    is_same = and_(
        known.left_value.is_not_distinct_from(told.left_value),
        known.right_value.is_not_distinct_from(told.right_value),
    )
    acknowledged = ("acknowledged_at", "acknowledged_by", "acknowledged_because")
    return statement.on_conflict_do_update(
        index_elements=["pair", "day", "scope", "unit", "kind"],
        index_where=known.resolved_at.is_(None),
        set_={name: told[name] for name in changing}
        | {name: case((is_same, known[name]), else_=null()) for name in acknowledged},
    )
