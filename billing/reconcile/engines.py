"""What each engine counted in a day against its events: one look at the day's events for all backends.

What is read: the readings of the day (one a minute and backend) and the events admitted in it, by the
index of their moment; never the whole history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import ARRAY, BigInteger, DateTime, Interval, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.ids import BackendId
from billing.metering.model import UsageSource
from billing.reconcile.counters import Stretch, stretch
from billing.reconcile.days import bounds
from billing.reconcile.explain import Cell, Place, billed_tokens, shares, verdict
from billing.reconcile.exposition import ENGINES
from billing.reconcile.model import (
    Counters,
    DayState,
    Engine,
    EngineDay,
    EngineMeter,
    Gap,
    Pair,
    Reading,
    Unit,
)
from billing.reconcile.set_aside import cells_set_aside

LONGEST = timedelta(hours=2)
"""From admission to settlement: several attempts of ten minutes each, and their queue; else the lag."""
OLDEST_BASE = timedelta(days=7)
"""A reading before the day is its beginning, if it is not older than that."""
FINAL_AFTER = timedelta(hours=6)
"""After the end of a day: from then on nothing of it comes late."""

_MOMENTS = ARRAY(DateTime(timezone=True))
_READINGS = text("""
SELECT r.* FROM unnest(:backends) AS b(id) CROSS JOIN LATERAL (
  (SELECT * FROM engine_reading WHERE backend_id = b.id AND at >= :oldest AND at < :begins AND at <= :until
   ORDER BY at DESC LIMIT 1)
  UNION ALL
  SELECT * FROM engine_reading WHERE backend_id = b.id AND at >= :begins AND at < :ends AND at <= :until) r
ORDER BY r.backend_id, r.at
""").bindparams(bindparam("backends", type_=ARRAY(Text)))
_CELLS = text("""
WITH span AS (
  SELECT * FROM unnest(:backends, :deployments, :begins, :ends) WITH ORDINALITY
    AS s(backend_id, deployment_id, begins_at, ends_at, number)
), hole AS (
  SELECT * FROM unnest(:hole_numbers, :hole_begins, :hole_ends) AS h(number, begins_at, ends_at)
), event AS (
  SELECT backend_id, deployment_id, attempts, usage_source, outcome, choices, unknown_bound,
    input + input_cached + input_cache_write AS prompt, output,
    billed_input + billed_input_cached + billed_input_cache_write AS billed_prompt, billed_output,
    admitted_at - :slack AS born, settled_at + :slack AS died
  FROM usage_event WHERE admitted_at >= :earliest AND admitted_at <= :latest
), met AS (
  SELECT s.number, e.*, CASE
    WHEN EXISTS (SELECT FROM hole h
      WHERE h.number = s.number AND e.born <= h.ends_at AND e.died >= h.begins_at) THEN 'hole'
    WHEN e.born >= s.begins_at AND e.died <= s.ends_at THEN 'inside'
    ELSE 'edge' END AS place
  FROM span s JOIN event e ON e.backend_id = s.backend_id
  WHERE e.born <= s.ends_at AND e.died >= s.begins_at
  UNION ALL
  SELECT s.number, e.*, 'other_attempt'
  FROM event e CROSS JOIN LATERAL jsonb_array_elements(e.attempts) WITH ORDINALITY AS a(attempt, turn)
    JOIN span s ON s.backend_id = a.attempt ->> 'backend_id'
  WHERE (a.turn < jsonb_array_length(e.attempts) OR e.backend_id IS NULL)
    AND a.attempt ->> 'outcome' NOT IN ('refused', 'overloaded', 'unreachable')
    AND e.born <= s.ends_at AND e.died >= s.begins_at
  UNION ALL
  SELECT s.number, e.*, 'nowhere'
  FROM event e JOIN span s ON s.deployment_id = e.deployment_id
  WHERE e.backend_id IS NULL AND e.outcome = 'lost' AND e.born <= s.ends_at AND e.died >= s.begins_at
)
SELECT number, place, usage_source, outcome = 'completed' AS whole,
  billed_prompt + billed_output > 0 AS is_billed, choices, count(*) AS requests,
  sum(prompt) AS prompt, sum(output) AS output,
  coalesce(sum((unknown_bound ->> 'input')::bigint), 0) AS bound_prompt,
  coalesce(sum((unknown_bound ->> 'output')::bigint), 0) AS bound_output,
  sum(billed_prompt) AS billed_prompt, sum(billed_output) AS billed_output,
  count(*) FILTER (WHERE outcome = 'lost') AS lost
FROM met GROUP BY number, place, usage_source, whole, is_billed, choices
""").bindparams(
    *(bindparam(name, type_=ARRAY(Text)) for name in ("backends", "deployments")),
    bindparam("hole_numbers", type_=ARRAY(BigInteger)),
    *(bindparam(name, type_=_MOMENTS) for name in ("begins", "ends", "hole_begins", "hole_ends")),
    bindparam("slack", type_=Interval),
)

_COUNTS = (
    "choices",
    "requests",
    "prompt",
    "output",
    "bound_prompt",
    "bound_output",
    "billed_prompt",
    "billed_output",
    "lost",
)


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a backend is compared, and the holes in it."""

    engine: Engine
    begins_at: datetime
    ends_at: datetime
    holes: tuple[tuple[datetime, datetime], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """What is compared by one meter.   known: what its counters say of the window; None: nothing."""

    window: Window
    meter: EngineMeter
    known: Stretch | None


async def compare(
    connection: AsyncConnection,
    day: date,
    *,
    engines: Sequence[Engine],
    now: datetime,
    lag: timedelta,
    slack: timedelta,
) -> list[EngineDay]:
    """Each backend's day for each meter; backends that neither say nor have anything are left out.

    lag: readings younger than that are left for later, because of requests that still run nobody knows.
    slack: by how much the clocks of gateways and of whoever reads the counters may differ.
    """
    readings = await _readings(connection, day, engines=engines, until=now - lag)
    spans = [
        _span(engine, meter, readings=readings.get(engine.backend_id, []), day=day)
        for engine in engines
        for meter in EngineMeter
    ]
    # Both meters mostly have one window: its events are looked at once.
    windows = list(dict.fromkeys(span.window for span in spans))
    cells = await _cells(connection, windows, slack=slack, longest=max(LONGEST, lag))
    is_final = now >= bounds(day)[1] + max(FINAL_AFTER, lag)
    days = [_day(span, cells[span.window], day=day, is_final=is_final) for span in spans]
    return [each for each in days if each.readings or each.requests]


def gaps(days: Sequence[EngineDay]) -> list[Gap]:
    """Of each day that its events don't explain, the gap."""
    return [_gap(day) for day in days if day.state in (DayState.UNATTRIBUTED, DayState.MISSING_AT_ENGINE)]


async def _readings(
    connection: AsyncConnection, day: date, *, engines: Sequence[Engine], until: datetime
) -> dict[BackendId, list[Reading]]:
    """The readings of a day, and before them the last of the days before."""
    begins, ends = bounds(day)
    backends = [engine.backend_id for engine in engines]
    values = {"begins": begins, "ends": ends, "until": until, "oldest": begins - OLDEST_BASE}
    by_backend: dict[BackendId, list[Reading]] = defaultdict(list)
    for row in await connection.execute(_READINGS, {"backends": backends, **values}):
        counters = Counters(row.process, row.prompt, row.cached, row.generated, row.finished)
        by_backend[BackendId(row.backend_id)].append(Reading(row.at, counters))
    return by_backend


def _span(engine: Engine, meter: EngineMeter, *, readings: Sequence[Reading], day: date) -> Span:
    known = stretch(readings, meter)
    begins, ends = bounds(day) if known is None else (known.begins_at, known.ends_at)
    return Span(Window(engine, begins, ends, known.holes if known else ()), meter, known)


async def _cells(
    connection: AsyncConnection, windows: Sequence[Window], *, slack: timedelta, longest: timedelta
) -> Mapping[Window, list[Cell]]:
    """The events of all windows, summed by what is alike."""
    cells: dict[Window, list[Cell]] = defaultdict(list)
    if not windows:
        return cells
    for row in (
        await connection.execute(_CELLS, _parameters(windows, slack=slack, longest=longest))
    ).mappings():
        cells[windows[row["number"] - 1]].append(
            Cell(
                place=Place(row["place"]),
                source=UsageSource(row["usage_source"]),
                whole=row["whole"],
                is_billed=row["is_billed"],
                **{name: int(row[name]) for name in _COUNTS},
            )
        )
    for window in windows:
        cells[window] += await cells_set_aside(
            connection, window.engine.backend_id, begins=window.begins_at, ends=window.ends_at
        )
    return cells


def _parameters(windows: Sequence[Window], *, slack: timedelta, longest: timedelta) -> dict[str, Any]:
    holes = [(number, hole) for number, window in enumerate(windows, 1) for hole in window.holes]
    return {
        "backends": [window.engine.backend_id for window in windows],
        "deployments": [window.engine.deployment_id for window in windows],
        "begins": [window.begins_at for window in windows],
        "ends": [window.ends_at for window in windows],
        "hole_numbers": [number for number, _ in holes],
        "hole_begins": [begins for _, (begins, _) in holes],
        "hole_ends": [ends for _, (_, ends) in holes],
        "slack": slack,
        "earliest": min(window.begins_at for window in windows) - longest,
        "latest": max(window.ends_at for window in windows) + slack,
    }


def _day(span: Span, cells: Sequence[Cell], *, day: date, is_final: bool) -> EngineDay:
    engine, known = span.window.engine, span.known
    names = ENGINES.get(engine.engine, ENGINES["vllm"])
    explained = shares(cells, meter=span.meter, names=names)
    counted = None if known is None else known.counted
    state, unexplained = verdict(counted, explained)
    return EngineDay(
        day=day,
        backend_id=engine.backend_id,
        meter=span.meter,
        model_id=engine.model_id,
        model_name=engine.model_name,
        state=state,
        begins_at=known.begins_at if known else None,
        ends_at=known.ends_at if known else None,
        readings=known.readings if known else 0,
        restarts=len(known.holes) if known else 0,
        counted=counted,
        recorded=sum(share.recorded for share in explained),
        billed=billed_tokens(cells, span.meter),
        explained=explained,
        unexplained=unexplained,
        requests=sum(cell.requests for cell in cells if cell.ran_here),
        lost=sum(cell.lost for cell in cells),
        is_final=is_final,
    )


def _gap(day: EngineDay) -> Gap:
    assert day.counted is not None
    assert day.unexplained is not None
    more = day.state is DayState.UNATTRIBUTED
    words = (
        f"the engine counted {day.unexplained} tokens that no request through the gateway explains"
        if more
        else f"the events hold {-day.unexplained} tokens that the engine did not count"
    )
    return Gap(
        pair=Pair.ENGINE_EVENTS,
        scope=f"{day.backend_id} {day.meter.value}",
        unit=Unit.TOKENS,
        kind=day.state.value,
        left=day.counted,
        right=day.counted - day.unexplained,
        explanation=words,
        backend_id=day.backend_id,
        model_id=day.model_id,
    )
