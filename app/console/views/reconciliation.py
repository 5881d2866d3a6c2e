"""Whether the books agree: a day's proofs and gaps, each engine against its events, two weeks at a glance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import Row
from starlette.responses import Response

from app.console.page import Page
from app.identity.model import Scope
from billing.reconcile import repository
from billing.reconcile.days import day_of
from billing.reconcile.explain import WORDS
from billing.reconcile.repository import Asked

_DAYS_SHOWN = 14
_MOST_GAPS = 100
_BAR_WIDTH, _BAR_HEIGHT = 40, 60


@dataclass(frozen=True)
class Bar:
    """One day of the plot, in its own units.   height: of what engines counted; 0 if nobody told."""

    day: date
    x: int
    height: int
    counted: int
    unexplained: int


async def show_reconciliation(page: Page) -> Response:
    """What reconciliation found of a day, by default of the last one that was proven."""
    page.actor.require(Scope.AUDIT_READ)
    today = day_of(page.site.now())
    day = _day(page.request.query_params.get("day")) or await repository.latest_day(page.connection) or today
    asked = Asked(day, day)
    fortnight = Asked(day - timedelta(days=_DAYS_SHOWN - 1), day)
    engines = await repository.list_days(page.connection, asked)
    return page.render(
        "reconciliation",
        day=day,
        proofs=await repository.list_proofs(page.connection, asked),
        gaps=await repository.open_gaps(page.connection, asked, limit=_MOST_GAPS),
        engines=engines,
        meanings={
            share["kind"]: WORDS[share["kind"]] for row in engines for share in row._mapping["explained"]
        },
        bars=_bars(await repository.list_days(page.connection, fortnight), last=day),
        bar_width=_BAR_WIDTH,
        bar_height=_BAR_HEIGHT,
    )


def _bars(days: Sequence[Row[tuple[object, ...]]], *, last: date) -> list[Bar]:
    """The last days by what all engines counted, and what of it is unexplained."""
    counted: dict[date, int] = defaultdict(int)
    unexplained: dict[date, int] = defaultdict(int)
    for row in (each._mapping for each in days):
        counted[row["day"]] += row["counted"] or 0
        unexplained[row["day"]] += abs(row["unexplained"] or 0)
    most = max(counted.values(), default=0) or 1
    shown = [last - timedelta(days=back) for back in reversed(range(_DAYS_SHOWN))]
    return [
        Bar(day, x * _BAR_WIDTH, counted[day] * _BAR_HEIGHT // most, counted[day], unexplained[day])
        for x, day in enumerate(shown)
    ]


def _day(text: str | None) -> date | None:
    """The day of the address; one that is none is as good as no day."""
    try:
        found = date.fromisoformat(text or "")
    except ValueError:
        return None
    return found if 2000 <= found.year < 9999 else None
