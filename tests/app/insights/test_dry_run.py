"""A limit tried on what was served: PostgreSQL's rows go in, and the answer says what it can't know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from app.core import ids
from app.core.errors import Rejected
from app.core.ids import ModelId, TenantId
from app.insights import dry_run
from app.insights.dry_run import Found, Tried
from app.insights.limits import Place
from billing.journal.model import Refused
from billing.metering.model import Usage
from billing.quota.terms import Scope, Subject, What, Window
from tests.app.insights.metered import RATES, Traffic, settled

MONDAY = datetime(2026, 9, 14, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


async def _serve(traffic: Traffic, at: list[datetime], **facts: Any) -> list[str]:
    """One request of 100 tokens (60 of input) at each moment; each runs 1.5 s."""
    made = [traffic.admitted(at=each, **facts) for each in at]
    await traffic.post([(each, settled(each, Usage(40, 20, output=40))) for each in made])
    return [each.request_id for each in made]


def _place(traffic: Traffic, *, key: int | None = None) -> Place:
    payer = traffic.payers[0]
    project_id, key_id = (None, None) if key is None else payer.keys[key][:2]
    return Place(TenantId(payer.tenant_id), {}, project_id, key_id)


async def _tried(
    traffic: Traffic, what: What, window: Window, amount: int, *, scope: Scope = "tenant", **more: Any
) -> Found:
    model, key = more.pop("model", None), more.pop("key", None)
    subject = Subject(scope, what, window, model and ModelId(traffic.models[model]))
    asked = {"start": MONDAY, "end": MONDAY + timedelta(days=7), "zone": ZoneInfo("UTC"), **more}
    burst = asked.pop("burst", None)
    async with traffic.world.engine.connect() as connection:
        tried = Tried(_place(traffic, key=key), subject, amount, burst)
        return await dry_run.dry_run(connection, tried, **asked)


async def test_a_rate_refuses_what_its_bucket_did_not_have(traffic: Traffic) -> None:
    at = [MONDAY + timedelta(seconds=each) for each in (0, 10, 20, 60, 120)]
    asked = await _serve(traffic, at)
    found = await _tried(traffic, "tokens", "minute", 100)
    assert (found.requests, found.refused) == (5, 2)
    assert [each.request_id for each in found.first] == asked[1:3]
    assert (await _tried(traffic, "tokens", "minute", 100, burst=200)).refused == 1
    assert (await _tried(traffic, "input_tokens", "minute", 100)).refused == 1
    assert (await _tried(traffic, "output_tokens", "minute", 39)).refused == 5
    assert (await _tried(traffic, "requests", "minute", 1)).refused == 2


async def test_only_the_requests_of_the_scope_and_the_model_are_weighed(traffic: Traffic) -> None:
    await _serve(traffic, [MONDAY] * 3)
    await _serve(traffic, [MONDAY], key=1, model="large")
    await _serve(traffic, [MONDAY] * 5, payer=1)
    assert (await _tried(traffic, "requests", "minute", 0)).refused == 4
    assert (await _tried(traffic, "requests", "minute", 0, model="large")).refused == 1
    assert (await _tried(traffic, "requests", "minute", 0, scope="project", key=1)).refused == 1
    assert (await _tried(traffic, "requests", "minute", 0, scope="key", key=0)).refused == 3
    assert (await _tried(traffic, "requests", "minute", 2)).refused == 2


async def test_a_budget_of_money_holds_the_most_that_a_request_can_cost(traffic: Traffic) -> None:
    await _serve(traffic, [MONDAY + timedelta(seconds=each) for each in (0, 1, 10)])
    held = 1000 * RATES.input + 500 * RATES.output
    spent = 40 * RATES.input + 20 * RATES.input_cached + 40 * RATES.output
    assert (await _tried(traffic, "picos", "day", held)).refused == 2
    assert (await _tried(traffic, "picos", "day", held + spent)).refused == 1
    assert (await _tried(traffic, "picos", "day", 2 * held)).refused == 0


async def test_a_budget_begins_with_the_period_and_days_are_the_tenants(traffic: Traffic) -> None:
    late = [MONDAY + timedelta(hours=each) for each in (2, 21, 23, 45)]
    await _serve(traffic, late)
    asked = {"start": MONDAY + timedelta(hours=20), "end": MONDAY + timedelta(days=2), "zone": BERLIN}
    found = await _tried(traffic, "requests", "day", 1, **asked)
    assert found.start == datetime(2026, 9, 13, 22, tzinfo=UTC)
    assert (found.requests, found.refused) == (4, 2)
    assert [(each.day.day, each.requests, each.refused) for each in found.days] == [
        (14, 2, 1),
        (15, 2, 1),
        (16, 0, 0),
    ]
    found = await _tried(traffic, "requests", "month", 3, **asked)
    assert (found.start, found.refused) == (datetime(2026, 8, 31, 22, tzinfo=UTC), 1)
    week = await _tried(traffic, "requests", "week", 3, **asked)
    assert (week.start, week.refused) == (datetime(2026, 9, 13, 22, tzinfo=UTC), 1)


async def test_requests_at_once_and_ceilings(traffic: Traffic) -> None:
    await _serve(traffic, [MONDAY + timedelta(milliseconds=each) for each in (0, 500, 1500, 1600)])
    assert (await _tried(traffic, "concurrent", "running", 1)).refused == 2
    assert (await _tried(traffic, "concurrent", "running", 2)).refused == 1
    assert (await _tried(traffic, "max_output", "request", 39)).refused == 4
    assert (await _tried(traffic, "max_context", "request", 100)).refused == 0


async def test_what_limits_refused_then_is_told_and_not_weighed(traffic: Traffic) -> None:
    payer = traffic.payers[0]
    project_id, key_id, _ = payer.keys[0]
    await traffic.refuse(
        Refused(
            request_id=ids.request_id(),
            at_ms=round(MONDAY.timestamp() * 1000),
            tenant_id=TenantId(payer.tenant_id),
            project_id=ids.ProjectId(project_id),
            key_id=ids.KeyId(key_id),
            model_name="small",
            endpoint="chat.completions",
            reason="tokens_per_minute",
            message="no",
            status=429,
            limit="1",
            observed="2",
            retry_after_s=None,
            allowance_id=payer.allowance_id,
        )
    )
    found = await _tried(traffic, "requests", "minute", 1)
    assert (found.requests, found.refused, found.refused_then) == (0, 0, 1)
    assert (await _tried(traffic, "requests", "minute", 1, model="large")).refused_then == 0


async def test_a_range_that_is_empty_too_long_or_too_full_is_refused(traffic: Traffic) -> None:
    await _serve(traffic, [MONDAY] * 3)
    for more in (
        {"end": MONDAY},
        {"end": MONDAY + timedelta(days=93)},
        {"most": 2},
    ):
        with pytest.raises(Rejected) as refused:
            await _tried(traffic, "requests", "minute", 1, **more)
        assert refused.value.status == 400
    assert (await _tried(traffic, "requests", "minute", 1, most=3)).requests == 3
