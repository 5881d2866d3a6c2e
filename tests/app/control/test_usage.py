"""`/usage` and the page-of-buckets endpoints say the same, and each caller sees its own part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.core.money import format_picos, parse_picos
from billing.metering.model import Usage
from tests.app.control.world import World
from tests.app.insights.metered import Traffic, open_traffic, settled

BASE = datetime(2026, 9, 20, tzinfo=UTC)
START = int(BASE.timestamp())


@pytest.fixture
async def traffic(world: World) -> Traffic:
    """Twelve requests over two days, of both payers, all keys and both models."""
    opened = await open_traffic(world)
    requests = []
    for number in range(12):
        admitted = opened.admitted(
            payer=number % 2,
            key=number // 2 % 2,
            model=("small", "large")[number % 3 % 2],
            at=BASE + timedelta(hours=3 * number, minutes=7),
        )
        requests.append((admitted, settled(admitted, Usage(number + 1, number, 0, 2 * number))))
    await opened.post(requests)
    return opened


async def _usage(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    usual = {"from": "2026-09-20T00:00:00Z", "to": "2026-09-22T00:00:00Z"}
    answer = await client.get("/api/v1/usage", params=usual | params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def _organization(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(f"/v1/organization/{path}", params={"start_time": START} | params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _total(rows: list[dict[str, Any]], currency: str) -> str:
    return format_picos(sum(parse_picos(row["cost"]) for row in rows if row["currency"] == currency))


async def test_any_grouping_has_the_same_total_as_the_ledger(traffic: Traffic) -> None:
    operator = traffic.world.operator
    totals = set()
    for group_by in ("tenant", "project", "key", "model", "key,model", "price_version,usage_source", ""):
        for bucket in ("none", "1d", "1h", "15m", "1m"):
            rows = await _usage(operator, group_by=group_by, bucket=bucket, limit=500)
            totals.add((_total(rows, "USD"), _total(rows, "EUR"), sum(row["requests"] for row in rows)))
    assert len(totals) == 1
    dollars, euros, count = totals.pop()
    assert count == 12
    for payer, spent in zip(traffic.payers, (dollars, euros), strict=True):
        wallet = (await operator.get(f"/api/v1/tenants/{payer.tenant_id}/wallet")).json()
        assert parse_picos(wallet["posted"]) + parse_picos(spent) == parse_picos("10")


async def test_rows_are_paged_to_the_same_whole(traffic: Traffic) -> None:
    params = {"from": "2026-09-20T00:00:00Z", "to": "2026-09-22T00:00:00Z", "bucket": "1h", "limit": 5}
    rows, after = [], None
    while True:
        more = params | ({"after": after} if after else {})
        page = (await traffic.world.operator.get("/api/v1/usage", params=more)).json()
        rows += page["data"]
        after = page["next"]
        if after is None:
            break
    assert rows == await _usage(traffic.world.operator, bucket="1h", limit=500)
    assert len(rows) == 12


@pytest.mark.parametrize("after", ["x", "WyJ4Il0", "W10", "eyJhIjoxfQ", "WyIxIiwgIngiLCAieSIsICJ6Il0"])
async def test_a_cursor_of_another_question_is_refused(world: World, after: str) -> None:
    answer = await world.operator.get("/api/v1/usage", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize(
    "params",
    [
        {"group_by": "colour"},
        {"timezone": "Mars/Olympus"},
        {"timezone": "../../etc/passwd"},
        {"from": "2026-09-20T00:00:00"},
        {"from": "2026-09-22T00:00:00Z", "to": "2026-09-21T00:00:00Z"},
        {"from": "2000-01-01T00:00:00Z", "bucket": "15m"},
        {"bucket": "2h"},
        {"limit": "501"},
    ],
)
async def test_a_question_that_cannot_be_is_refused(world: World, params: dict[str, str]) -> None:
    assert (await world.operator.get("/api/v1/usage", params=params)).status_code == 400


async def test_days_are_the_tenants_own(traffic: Traffic) -> None:
    payer = traffic.payers[0]
    path = f"/api/v1/tenants/{payer.tenant_id}"
    await traffic.world.operator.patch(path, json={"timezone": "Asia/Shanghai"})
    viewer = await traffic.world.member("viewer", payer.tenant_id)
    rows = await _usage(viewer, bucket="1d", group_by="")
    assert [row["start"] for row in rows] == [
        "2026-09-20T00:00:00Z",
        "2026-09-20T16:00:00Z",
    ]


async def test_a_tenant_sees_its_own_and_a_key_its_projects_part(traffic: Traffic) -> None:
    payer = traffic.payers[0]
    viewer = await traffic.world.member("viewer", payer.tenant_id)
    rows = await _usage(viewer, group_by="project")
    assert {row["project_id"] for row in rows} == {project for project, _, _ in payer.keys}
    project_id, _, secret = payer.keys[0]
    client = traffic.world.client(secret)
    own = await _usage(client, group_by="project")
    assert [row for row in rows if row["project_id"] == project_id] == own
    assert await _usage(client, project_id=payer.keys[1][0]) == []
    page = await _organization(client, "usage/completions", group_by="project_id", limit=31)
    seen = {result["project_id"] for bucket in page["data"] for result in bucket["results"]}
    assert seen == {project_id}


async def test_the_page_of_buckets_has_the_shape_that_scripts_know(traffic: Traffic) -> None:
    page = await _organization(traffic.world.operator, "usage/completions", end_time=START + 2 * 86400)
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)
    assert [(bucket["object"], bucket["start_time"]) for bucket in page["data"]] == [
        ("bucket", START),
        ("bucket", START + 86400),
    ]
    first = page["data"][0]["results"]
    assert len(first) == 1
    assert first[0]["object"] == "organization.usage.completions.result"
    assert first[0]["input_tokens"] == sum(2 * number + 1 for number in range(8))
    assert first[0]["input_cached_tokens"] == sum(range(8))
    assert first[0]["output_tokens"] == sum(2 * number for number in range(8))
    assert first[0]["num_model_requests"] == 8
    assert first[0]["model"] is None


@pytest.mark.parametrize("name", ["group_by", "group_by[]"])
async def test_lists_come_in_both_spellings(traffic: Traffic, name: str) -> None:
    params = {name: ["model", "api_key_id"], "bucket_width": "1h", "limit": 48}
    page = await _organization(traffic.world.operator, "usage/completions", **params)
    results = [result for bucket in page["data"] for result in bucket["results"]]
    assert {result["model"] for result in results} == {"small", "large"}
    assert len({result["api_key_id"] for result in results}) == 4
    assert sum(result["num_model_requests"] for result in results) == 12


@pytest.mark.parametrize(("path", "width"), [("usage/completions", "1h"), ("costs", "1h"), ("costs", "1d")])
async def test_pages_go_on_where_the_one_before_ended(traffic: Traffic, path: str, width: str) -> None:
    asked = {"bucket_width": width, "end_time": START + 2 * 86400}
    whole = await _organization(traffic.world.operator, path, limit=48, **asked)
    buckets, page = [], None
    while True:
        more = asked | {"limit": 7 if width == "1h" else 1} | ({"page": page} if page else {})
        part = await _organization(traffic.world.operator, path, **more)
        buckets += part["data"]
        page = part["next_page"]
        assert part["has_more"] is (page is not None)
        if page is None:
            break
    assert buckets == whole["data"]


async def test_costs_name_their_price_version_and_who_counted_and_equal_usage(traffic: Traffic) -> None:
    page = await _organization(traffic.world.operator, "costs", group_by="line_item")
    results = [result for bucket in page["data"] for result in bucket["results"]]
    assert {result["line_item"] for result in results} == {"small", "large"}
    assert {result["price_version"] for result in results} == {
        payer.price_version_id for payer in traffic.payers
    }
    assert {result["usage_source"] for result in results} == {"engine"}
    rows = await _usage(traffic.world.operator)
    for currency in ("USD", "EUR"):
        amounts = [result["amount"] for result in results if result["amount"]["currency"] == currency]
        cost = format_picos(sum(parse_picos(amount["value"]) for amount in amounts))
        assert cost == _total(rows, currency)


async def test_filters_by_model_and_key_narrow_both(traffic: Traffic) -> None:
    key_id = traffic.payers[0].keys[0][1]
    params = {"api_key_ids": key_id, "models[]": "small"}
    page = await _organization(traffic.world.operator, "usage/completions", **params)
    results = [result for bucket in page["data"] for result in bucket["results"]]
    rows = await _usage(traffic.world.operator, key_id=key_id, model="small")
    assert sum(result["num_model_requests"] for result in results) == rows[0]["requests"]
    none = await _organization(traffic.world.operator, "usage/completions", models="nobody")
    assert not [bucket for bucket in none["data"] if bucket["results"]]


@pytest.mark.parametrize(
    "params", [{"start_time": "x"}, {}, {"start_time": "99999999999"}, {"start_time": "1", "page": "2"}]
)
async def test_a_page_that_cannot_be_is_refused(world: World, params: dict[str, str]) -> None:
    answer = await world.operator.get("/v1/organization/usage/completions", params=params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parameter_invalid")
