"""Each charge and each refusal is explained by its request id, with exact arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from sqlalchemy import text

from app.core import ids
from app.core.database import connect_engine
from app.core.money import parse_picos, parse_price
from billing.journal.facts import Facts
from billing.journal.join import Charge
from billing.journal.model import Held, Refused, encode
from billing.journal.posting import Batch, Position, post
from billing.metering.model import Outcome, Usage, UsageSource
from tests.app.insights.metered import Traffic, settled

AT = datetime(2026, 9, 21, 14, tzinfo=UTC)
ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"backend_id": "bck_two", "predicted_wait_ms": 90.0, "scores": {}, "outcome": "unreachable"},
    {
        "backend_id": "bck_one",
        "started_ms": 1790000000123,
        "predicted_wait_ms": 180.40000000000003,
        "first_byte_ms": 29.75821132323434,
        "duration_ms": 31,
        "scores": {"bck_one": 180.40000000000003, "bck_three": 250.0},
        "outcome": "delivered",
    },
)


async def _explained(traffic: Traffic, request_id: str) -> dict[str, Any]:
    answer = await traffic.world.operator.get(f"/api/v1/requests/{request_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_charge_is_shown_from_its_limit_to_its_ledger_entry(traffic: Traffic) -> None:
    admitted = traffic.admitted(at=AT)
    usage = Usage(700, 200, 0, 90, 10)
    await traffic.post([(admitted, settled(admitted, usage, attempts=ATTEMPTS))])
    shown = await _explained(traffic, admitted.request_id)
    assert shown["admitted_at"] == "2026-09-21T14:00:00Z"
    assert [line["arithmetic"] for line in shown["charge"]["lines"]] == [
        "700 × 0.54 / 1000000 = 0.000378",
        "200 × 0.18 / 1000000 = 0.000036",
        "90 × 2.16 / 1000000 = 0.0001944",
    ]
    assert shown["charge"]["total"] == shown["cost"] == "0.0006084"
    assert shown["usage"] == {
        "source": "engine",
        "input": 700,
        "input_cached": 200,
        "input_cache_write": 0,
        "output": 90,
        "total": 990,
        "reasoning": 10,
        "unknown_bound": None,
    }
    assert shown["hold"] == {
        "amount": "0.00162",
        "captured": "0.0006084",
        "released": "0.0010116",
        "beyond_lease": "0",
        "currency": "USD",
    }
    assert [(limit["scope"], limit["what"], limit["held"]) for limit in shown["limits"]] == [
        ("tenant", "money", "0.00162")
    ]
    assert shown["decision"]["reason"] == (
        "Least predicted wait (180.4 ms) of 2 that could take it after 1 failed attempt."
    )
    assert [score["chosen"] for score in shown["decision"]["scores"]] == [True, False]
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["unreachable", "delivered"]
    assert [list(attempt) for attempt in shown["attempts"]] == [list(shown["attempts"][0])] * 2
    measured = ("started_at", "predicted_wait_ms", "first_byte_ms", "duration_ms")
    assert [shown["attempts"][1][name] for name in measured] == [
        "2026-09-21T14:13:20.123000Z",
        180.4,
        29.8,
        31,
    ]
    entries = {entry["account"]: entry["amount"] for entry in shown["ledger"]["entries"]}
    assert entries == {"revenue": "0.0006084", "wallet": "-0.0006084"}


@profile(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.builds(Usage, *[st.integers(0, 10**9)] * 4))
async def test_the_lines_of_any_charge_add_up_to_it(traffic: Traffic, usage: Usage) -> None:
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, usage)
    await traffic.post([(admitted, end)])
    shown = await _explained(traffic, admitted.request_id)
    lines = shown["charge"]["lines"]
    assert sum(parse_picos(line["amount"]) for line in lines) == end.cost_picos
    assert all(line["tokens"] * parse_price(line["price"]) == parse_picos(line["amount"]) for line in lines)
    assert parse_picos(shown["cost"]) == end.cost_picos


async def test_usage_that_nobody_reported_is_shown_as_unknown_with_its_bound(traffic: Traffic) -> None:
    admitted = traffic.admitted(at=AT)
    end = settled(admitted, Usage(), outcome=Outcome.LOST, source=UsageSource.UNKNOWN)
    await traffic.post([(admitted, end)])
    shown = await _explained(traffic, admitted.request_id)
    assert shown["usage"]["source"] == "unknown"
    assert shown["usage"]["unknown_bound"]["input"] == 1000
    assert shown["usage"]["unknown_bound"]["output"] == 500
    assert shown["charge"] == shown["charge"] | {"lines": [], "total": "0"}
    assert shown["ledger"]["transaction_id"] is None
    assert "before it could write one" in shown["decision"]["reason"]


def _refused(traffic: Traffic, request_id: str) -> Refused:
    payer = traffic.payers[0]
    return Refused(
        request_id=ids.RequestId(request_id),
        at_ms=round(AT.timestamp() * 1000),
        tenant_id=ids.TenantId(payer.tenant_id),
        project_id=ids.ProjectId(payer.keys[0][0]),
        key_id=ids.KeyId(payer.keys[0][1]),
        model_name="small",
        endpoint="chat.completions",
        reason="balance_too_low",
        message="The wallet does not cover the hold.",
        status=429,
        limit="10",
        observed="12.5",
        retry_after_s=None,
        allowance_id=payer.allowance_id,
        facts={"scope": f"tenant {payer.tenant_id}", "unit": "USD", "needed": "3", "available": "-2.5"},
    )


async def test_a_refusal_says_which_limit_what_was_asked_and_what_to_do(traffic: Traffic) -> None:
    request_id = ids.request_id()
    await traffic.refuse(_refused(traffic, request_id))
    shown = await _explained(traffic, request_id)
    assert (shown["outcome"], shown["status"]) == ("refused", 429)
    refusal = shown["refusal"]
    assert (refusal["reason"], refusal["limit"], refusal["observed"]) == ("balance_too_low", "10", "12.5")
    assert (refusal["unit"], refusal["needed"], refusal["available"]) == ("USD", "3", "-2.5")
    assert refusal["scope"] == f"tenant {traffic.payers[0].tenant_id}"
    assert refusal["allowance_id"] == traffic.payers[0].allowance_id
    assert refusal["remedy"].startswith("Top up the wallet")


_LIMIT = """
INSERT INTO allowance (id, tenant_id, scope_kind, scope_id, model_id, what, window_kind, limit_amount, burst,
  level_micros, level_at, period_start, period_end, limit_source, created_at)
SELECT :id, :tenant, 'tenant', :tenant, :model, :what, w.kind, 1000,
  CASE WHEN w.kind = 'minute' THEN 1000 END, CASE WHEN w.kind = 'minute' THEN 0 END,
  CASE WHEN w.kind = 'minute' THEN now() END, CASE WHEN w.kind = 'day' THEN timestamptz '2026-09-21' END,
  CASE WHEN w.kind = 'day' THEN timestamptz '2026-09-22' END, 'plan:pln_1', '2026-09-01'
FROM (SELECT CAST(:window AS text) AS kind) w
"""


async def test_every_limit_of_a_request_is_shown_with_what_it_held_and_used(traffic: Traffic) -> None:
    admitted = traffic.admitted(at=AT)
    named = {"tenant": admitted.tenant_id, "model": None}
    kinds = [("tokens", "day"), ("tokens", "minute"), ("max_output", "request")]
    owner = connect_engine(traffic.world.database.owner_url)
    async with owner.begin() as connection:
        for what, window in kinds:
            values = {**named, "id": f"alw_{window}", "what": what, "window": window}
            await connection.execute(text(_LIMIT), values)
        other = {**named, "model": traffic.models["large"], "id": "alw_other"}
        await connection.execute(text(_LIMIT), {**other, "what": "requests", "window": "minute"})
    await owner.dispose()
    admitted = msgspec.structs.replace(
        admitted, holds=(*admitted.holds, Held(ids.AllowanceId("alw_day"), 1500, "tokens"))
    )
    await traffic.post([(admitted, settled(admitted, Usage(700, 200, 0, 90, 10)))])
    shown = {each["window"]: each for each in (await _explained(traffic, admitted.request_id))["limits"]}
    assert set(shown) == {"balance", "day", "minute", "request"}
    assert (shown["day"]["held"], shown["day"]["used"], shown["day"]["spent_now"]) == ("1500", "990", "990")
    assert shown["day"]["period_start"] == "2026-09-21T00:00:00Z"
    assert (shown["minute"]["allowance_id"], shown["minute"]["used"]) == ("alw_minute", "990")
    assert (shown["request"]["what"], shown["request"]["used"]) == ("max_output", "90")
    assert shown["minute"]["held"] is shown["request"]["held"] is None


async def test_a_settlement_that_was_set_aside_is_shown_to_staff_only(traffic: Traffic) -> None:
    admitted = traffic.admitted(at=AT)
    cheap = msgspec.structs.replace(settled(admitted, Usage(1)), cost_picos=1)
    charge = Charge(0, 0, admitted, cheap, encode(admitted), encode(cheap))
    async with traffic.world.engine.begin() as connection:
        batch = Batch(traffic.incarnation_id, [charge], Position(0, 0))
        assert (await post(connection, batch, facts=Facts(), now=AT)).parked == 1
    shown = await _explained(traffic, admitted.request_id)
    assert shown["outcome"] == "parked"
    assert "picos" in shown["parked"]["reason"]
    owner = await traffic.world.member("viewer", traffic.payers[0].tenant_id)
    assert (await owner.get(f"/api/v1/requests/{admitted.request_id}")).status_code == 404


async def test_what_is_not_posted_yet_is_a_404_that_says_so(traffic: Traffic) -> None:
    answer = await traffic.world.operator.get(f"/api/v1/requests/{ids.request_id()}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "in progress" in answer.json()["error"]["hint"]


async def test_another_tenants_request_is_as_if_it_did_not_exist(traffic: Traffic) -> None:
    admitted = traffic.admitted(at=AT)
    await traffic.post([(admitted, settled(admitted, Usage(1)))])
    stranger = await traffic.world.member("viewer", traffic.payers[1].tenant_id)
    owner = await traffic.world.member("viewer", traffic.payers[0].tenant_id)
    assert (await owner.get(f"/api/v1/requests/{admitted.request_id}")).status_code == 200
    assert (await stranger.get(f"/api/v1/requests/{admitted.request_id}")).status_code == 404


async def test_the_log_lists_settled_and_refused_requests_together_newest_first(traffic: Traffic) -> None:
    made = []
    for number in range(3):
        admitted = traffic.admitted(at=AT, key=number % 2)
        await traffic.post([(admitted, settled(admitted, Usage(number, output=1)))])
        refused = ids.request_id()
        await traffic.refuse(_refused(traffic, refused))
        made += [admitted.request_id, refused]
    operator, seen, after = traffic.world.operator, [], None
    while True:
        params = {"limit": 4} | ({"after": after} if after else {})
        page = (await operator.get("/api/v1/requests", params=params)).json()
        seen += [row["request_id"] for row in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert seen == made[::-1]
    only = {"outcome": "refused"}
    rows = (await operator.get("/api/v1/requests", params=only)).json()["data"]
    assert [(row["outcome"], row["reason"], row["usage"]) for row in rows] == [
        ("refused", "balance_too_low", None)
    ] * 3
    key_id = traffic.payers[0].keys[1][1]
    rows = (await operator.get("/api/v1/requests", params={"key_id": key_id})).json()["data"]
    assert [(row["usage"]["input"], row["cost"], row["currency"]) for row in rows] == [
        (1, "0.0000027", "USD")
    ]
