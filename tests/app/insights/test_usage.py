"""The parts are the whole: any grouping, any zone, any page, from roll-ups or events, to the pico."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.clock import from_ms
from app.core.errors import Rejected
from app.insights.buckets import Width, edges
from app.insights.usage import (
    BILLED,
    GROUPS,
    TOKENS,
    UsageFilter,
    UsageQuery,
    UsageRow,
    summarize,
    summarize_whole,
)
from billing.journal.model import Admitted, Settled
from billing.metering.model import Outcome, Usage, UsageSource
from tests.app.insights.metered import Traffic, settled
from tests.app.insights.test_buckets import ZONES

BASE = datetime(2026, 11, 1, tzinfo=UTC)
"""The day on which New York's clocks go back."""

_minutes = st.integers(min_value=-1500, max_value=1500)
_tokens = st.integers(min_value=0, max_value=10**12)
_sources = st.sampled_from([UsageSource.ENGINE, UsageSource.TOKENIZER, UsageSource.UNKNOWN])


@st.composite
def _usages(draw: st.DrawFn, source: UsageSource) -> Usage:
    if source is UsageSource.UNKNOWN:
        return Usage()
    fresh, cached, written, output = (draw(_tokens) for _ in range(4))
    return Usage(fresh, cached, written, output, draw(st.integers(min_value=0, max_value=output)))


@st.composite
def _requests(draw: st.DrawFn) -> dict[str, Any]:
    source = draw(_sources)
    return {
        "at": BASE + timedelta(minutes=draw(_minutes), milliseconds=draw(st.integers(0, 59_999))),
        "payer": draw(st.integers(0, 1)),
        "key": draw(st.integers(0, 1)),
        "model": draw(st.sampled_from(["small", "large"])),
        "usage": draw(_usages(source)),
        "source": source,
    }


@st.composite
def _questions(draw: st.DrawFn) -> dict[str, Any]:
    step = draw(st.sampled_from([1, 15, 60]))
    start = BASE + timedelta(minutes=draw(st.integers(-1600 // step, 1500 // step)) * step)
    return {
        "start": start,
        "end": start + timedelta(minutes=draw(st.integers(1, 3000 // step)) * step),
        "width": draw(st.sampled_from(Width)),
        "zone": ZoneInfo(draw(st.sampled_from(ZONES))),
        "group_by": tuple(name for name in GROUPS if draw(st.booleans())),
        "payer": draw(st.sampled_from([None, 0, 1])),
        "key": draw(st.sampled_from([None, 0, 1])),
        "model": draw(st.sampled_from([None, "small", "large"])),
    }


def _made(traffic: Traffic, request: dict[str, Any]) -> tuple[Admitted, Settled]:
    facts = dict(request)
    usage, source = facts.pop("usage"), facts.pop("source")
    admitted = traffic.admitted(**facts)
    outcome = Outcome.LOST if source is UsageSource.UNKNOWN else Outcome.COMPLETED
    return admitted, settled(admitted, usage, outcome=outcome, source=source)


def _query(traffic: Traffic, question: dict[str, Any]) -> UsageQuery:
    payer, key, model = (question[name] for name in ("payer", "key", "model"))
    keys = [who.keys[key][1] for who in traffic.payers] if key is not None else []
    only = UsageFilter(
        tenant_ids=() if payer is None else (traffic.payers[payer].tenant_id,),
        key_ids=tuple(keys),
        model_ids=() if model is None else (traffic.models[model],),
    )
    cut = edges(question["start"], question["end"], width=question["width"], zone=question["zone"])
    return UsageQuery(cut, question["group_by"], only)


def _expected(traffic: Traffic, query: UsageQuery) -> dict[tuple[Any, ...], dict[str, int]]:
    """The answer counted request by request, as anyone would with pencil and paper."""
    sums: dict[tuple[Any, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for admitted, end in traffic.posted:
        at = from_ms(admitted.at_ms)
        facts = {name: getattr(admitted, name, None) for name in GROUPS.values()}
        facts["usage_source"] = end.usage_source.value
        wanted = {
            "tenant_id": query.only.tenant_ids,
            "key_id": query.only.key_ids,
            "model_id": query.only.model_ids,
        }
        outside = not query.cut[0] <= at < query.cut[-1]
        if outside or any(values and facts[name] not in values for name, values in wanted.items()):
            continue
        bucket = max(edge for edge in query.cut if edge <= at)
        group = tuple(facts[GROUPS[name]] for name in query.group_by)
        row = sums[bucket, group, admitted.currency]
        for name in TOKENS:
            row[name] += getattr(end.usage, name)
        for name in BILLED:
            row[name] += getattr(end.billed, name.removeprefix("billed_"))
        row["requests"] += 1
        row["unknown_requests"] += end.usage_source is UsageSource.UNKNOWN
        row["cost"] += end.cost_picos
    return {key: dict(row) for key, row in sums.items()}


def _found(rows: Sequence[UsageRow], query: UsageQuery) -> dict[tuple[Any, ...], dict[str, int]]:
    found = {}
    for row in rows:
        group = tuple(row.group[GROUPS[name]] for name in query.group_by)
        counts = {"requests": row.requests, "unknown_requests": row.unknown_requests, "cost": row.cost}
        found[row.start, group, row.currency] = dict(row.tokens) | counts
    assert len(found) == len(rows)
    return found


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_requests(), min_size=1, max_size=12), st.lists(_questions(), min_size=6, max_size=6))
async def test_every_sum_is_that_of_its_requests(
    traffic: Traffic, requests: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    await traffic.post([_made(traffic, request) for request in requests])
    async with traffic.world.engine.connect() as connection:
        for question in questions:
            query = _query(traffic, question)
            rows = await summarize(connection, query)
            assert _found(rows, query) == _expected(traffic, query)
            pages, after = [], None
            while page := await summarize(connection, query, after=after, limit=2):
                pages += page
                after = page[-1].cursor
            assert pages == rows


async def test_the_names_of_models_come_with_their_sums(traffic: Traffic) -> None:
    await traffic.post(
        [_made(traffic, {"at": BASE, "model": "large", "usage": Usage(1), "source": UsageSource.ENGINE})]
    )
    async with traffic.world.engine.connect() as connection:
        query = UsageQuery([BASE, BASE + timedelta(days=1)], ("model",))
        rows = await summarize(connection, query)
    assert [(row.model, row.group) for row in rows] == [("large", {"model_id": traffic.models["large"]})]


async def test_one_instant_at_the_edge_belongs_to_the_bucket_that_starts_there(traffic: Traffic) -> None:
    await traffic.post([_made(traffic, {"at": BASE, "usage": Usage(1), "source": UsageSource.ENGINE})])
    quarter = timedelta(minutes=15)
    async with traffic.world.engine.connect() as connection:
        for step in (quarter, timedelta(minutes=1)):
            before = await summarize(connection, UsageQuery([BASE - step, BASE]))
            after = await summarize(connection, UsageQuery([BASE, BASE + step]))
            assert (before, [row.requests for row in after]) == ([], [1])


async def test_an_answer_in_one_piece_has_a_bound_and_says_so(traffic: Traffic) -> None:
    made = [traffic.admitted(at=BASE, payer=payer) for payer in (0, 1)]
    await traffic.post([(each, settled(each, Usage(1))) for each in made])
    cut = edges(BASE, BASE + timedelta(days=1), width=Width.DAY, zone=ZoneInfo("UTC"))
    async with traffic.world.engine.connect() as connection:
        query = UsageQuery(cut, ("tenant",))
        assert len(await summarize_whole(connection, query, most=2)) == 2
        with pytest.raises(Rejected, match="fewer buckets or groups"):
            await summarize_whole(connection, query, most=1)
