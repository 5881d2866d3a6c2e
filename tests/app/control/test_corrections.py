"""A correction is asked for once, by whoever may move money, and every view says the same after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.core.clock import from_ms
from app.core.money import format_picos, parse_picos
from billing.metering.model import Usage
from tests.app.control.world import World
from tests.app.insights.metered import Traffic, open_traffic, settled

BASE = datetime(2026, 9, 20, tzinfo=UTC)
RANGE = {"from": "2026-09-20T00:00:00Z", "to": "2026-09-22T00:00:00Z"}


@pytest.fixture
async def traffic(world: World) -> Traffic:
    """Four requests, two of each payer."""
    opened = await open_traffic(world)
    admitted = [opened.admitted(payer=n % 2, at=BASE + timedelta(hours=n, minutes=7)) for n in range(4)]
    await opened.post([(each, settled(each, Usage(300, 20, 0, 40))) for each in admitted])
    return opened


async def correct(
    client: httpx.AsyncClient, request_id: str, *, key: str = "k", **body: Any
) -> httpx.Response:
    path = f"/api/v1/requests/{request_id}/corrections"
    sent = {"reason": "counted twice", **body}
    return await client.post(path, json=sent, headers={"idempotency-key": key})


def mine(traffic: Traffic) -> tuple[str, str]:
    """(tenant, request) of the first payer."""
    return traffic.payers[0].tenant_id, traffic.posted[0][0].request_id


async def cost(client: httpx.AsyncClient, tenant_id: str, **params: str) -> str:
    answer = await client.get("/api/v1/usage", params={**RANGE, "tenant_id": tenant_id, **params})
    return format_picos(sum(parse_picos(row["cost"]) for row in answer.json()["data"]))


async def test_usage_wallet_ledger_and_explanation_agree_after_a_correction(traffic: Traffic) -> None:
    operator = traffic.world.operator
    tenant_id, request_id = mine(traffic)
    spent = sum(end.cost_picos for begin, end in traffic.posted if begin.tenant_id == tenant_id)
    answer = await correct(operator, request_id, amount="0.0001")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    left = format_picos(spent - 10**8)
    for bucket in ("none", "1d", "15m", "1m"):
        for group_by in ("model", "key", "usage_source", ""):
            assert await cost(operator, tenant_id, bucket=bucket, group_by=group_by) == left
    wallet = (await operator.get(f"/api/v1/tenants/{tenant_id}/wallet")).json()
    assert parse_picos(wallet["posted"]) == parse_picos("10") - spent + 10**8
    entries = (await operator.get(f"/api/v1/wallets/{wallet['id']}/entries")).json()["data"]
    assert (entries[0]["kind"], entries[0]["amount"], entries[0]["ref_id"]) == (
        "correction",
        "0.0001",
        made["id"],
    )
    told = (await operator.get(f"/api/v1/requests/{request_id}")).json()
    assert told["corrections"]["net_cost"] == format_picos(parse_picos(told["cost"]) - 10**8)
    assert [row["id"] for row in told["corrections"]["rows"]] == [made["id"]]


async def test_a_bucket_of_minutes_and_one_of_quarters_show_the_correction_in_its_own_time(
    traffic: Traffic,
) -> None:
    operator = traffic.world.operator
    tenant_id, request_id = mine(traffic)
    await correct(operator, request_id, tokens={"output": -40})
    for bucket in ("1m", "15m"):
        params = {**RANGE, "tenant_id": tenant_id, "bucket": bucket, "group_by": "usage_source"}
        rows = (await operator.get("/api/v1/usage", params=params)).json()["data"]
        [row] = [row for row in rows if row["usage_source"] == "correction"]
        assert row["start"] <= from_ms(traffic.world.clock.now_ms()).isoformat() < row["end"]
        assert (row["requests"], row["output"], row["billed_output"], row["cost"]) == (
            0,
            0,
            -40,
            "-0.0000864",
        )


async def test_the_same_key_is_the_same_correction(traffic: Traffic) -> None:
    operator = traffic.world.operator
    _, request_id = mine(traffic)
    first, again = [await correct(operator, request_id, amount="0.00001") for _ in range(2)]
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    reference = {"reference": "ticket 7"}
    one = await correct(operator, request_id, key="a", amount="0.00001", **reference)
    assert (await correct(operator, request_id, key="b", amount="0.00001", **reference)).json() == one.json()
    other = await correct(operator, request_id, key="c", amount="0.00002", **reference)
    assert other.status_code == 409
    listed = (await operator.get("/api/v1/corrections")).json()["data"]
    assert [row["id"] for row in listed] == [one.json()["id"], first.json()["id"]]


async def test_it_is_written_into_the_audit_log_with_who_and_what(traffic: Traffic) -> None:
    operator = traffic.world.operator
    _, request_id = mine(traffic)
    made = (await correct(operator, request_id, amount="0.00001")).json()
    row = (await operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"][0]
    assert (row["action"], row["object_id"], row["after"]["id"]) == (
        "request.correct",
        request_id,
        made["id"],
    )
    assert row["actor"] == made["created_by"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"amount": "0"}, 409),
        ({"amount": "1000"}, 409),
        ({"amount": "-1000"}, 409),
        ({"tokens": {"output": -41}}, 409),
        ({"tokens": {"output": 0}}, 409),
        ({"amount": "0.00001", "tokens": {"output": -1}}, 409),
        ({"amount": "1e3"}, 400),
        ({"tokens": {"outputs": 1}}, 400),
        ({"amount": "0.1", "reason": ""}, 400),
    ],
)
async def test_what_can_not_be_corrected_is_refused_and_changes_nothing(
    traffic: Traffic, body: dict[str, Any], status: int
) -> None:
    tenant_id, request_id = mine(traffic)
    operator = traffic.world.operator
    before = await cost(operator, tenant_id)
    assert (await correct(operator, request_id, **body)).status_code == status
    assert await cost(operator, tenant_id) == before
    assert (await operator.get("/api/v1/corrections")).json()["data"] == []


async def test_only_who_may_move_money_corrects_and_each_tenant_sees_its_own(traffic: Traffic) -> None:
    world = traffic.world
    tenant_id, request_id = mine(traffic)
    staff = await world.member("finance")
    insider = await world.member("finance", tenant_id)
    outsider = await world.member("developer", traffic.payers[1].tenant_id)
    assert (await correct(insider, request_id, amount="0.00001")).status_code == 403
    made = (await correct(staff, request_id, amount="0.00001")).json()
    seen = (await insider.get("/api/v1/corrections", params={"request_id": request_id})).json()["data"]
    assert seen == [made]
    assert (await outsider.get("/api/v1/corrections")).json()["data"] == []
    params = {"tenant_id": tenant_id}
    assert (await outsider.get("/api/v1/corrections", params=params)).status_code == 404


async def test_an_unknown_request_is_not_found(world: World) -> None:
    answer = await correct(world.operator, "req_" + "0" * 32, amount="1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
