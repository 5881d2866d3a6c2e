"""Alerts over the API: endpoints with a secret shown once, rules, deliveries; each within its tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.core.settings import Settings
from app.workers.alerts import raise_alerts
from app.workers.deliveries import deliver_alerts
from tests.app.control.world import World

HOOK = "https://93.184.216.34/hook"


async def own(world: World, role: str = "developer") -> tuple[dict[str, Any], httpx.AsyncClient]:
    tenant = await world.tenant("Acme")
    return tenant, await world.member(role, tenant["id"])


async def spend(world: World, tenant_id: str, share: str) -> None:
    """Let a share of the tenant's wallet be used, as posts without a lease would."""
    use = (
        f"UPDATE allowance SET spent = spent + limit_amount * {share}, unleased = 1 WHERE tenant_id = :tenant"
    )
    async with world.engine.begin() as connection:
        await connection.execute(text(use), {"tenant": tenant_id})
    await asyncio.to_thread(raise_alerts, world.database.app_url, clock=world.clock)


async def fund(world: World, tenant_id: str) -> None:
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant_id}/wallet")).json()
    grant = {"amount": "25", "kind": "purchased", "reason": "order"}
    await world.made(f"/wallets/{wallet['id']}/grants", grant, **{"idempotency-key": "fund"})


async def test_a_webhooks_secret_is_shown_once_and_nowhere_again(world: World) -> None:
    tenant, developer = await own(world)
    body, headers = {"url": HOOK, "name": "operations"}, {"idempotency-key": "one"}
    made = (await developer.post("/api/v1/alert-endpoints", json=body, headers=headers)).json()
    assert made["secret"].startswith("whsec_")
    assert (made["tenant_id"], made["kind"], made["status"]) == (tenant["id"], "webhook", "active")
    again = await developer.post("/api/v1/alert-endpoints", json=body, headers=headers)
    assert (again.status_code, again.json()["error"]["id"]) == (409, made["id"])
    shown = [
        await developer.get("/api/v1/alert-endpoints"),
        await developer.get(f"/api/v1/alert-endpoints/{made['id']}"),
        await developer.patch(f"/api/v1/alert-endpoints/{made['id']}", json={"name": "ops"}),
        await world.operator.get("/api/v1/audit-log"),
        again,
    ]
    assert not [answer for answer in shown if made["secret"] in answer.text or "whsec" in answer.text]
    async with world.engine.connect() as connection:
        kept = await connection.scalar(
            text("SELECT count(*) FROM idempotency_key WHERE response::text LIKE '%whsec%'")
        )
    assert kept == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": HOOK, "email": "a@example.com"},
        {"url": "http://93.184.216.34/hook"},
        {"url": "https://127.0.0.1/hook"},
        {"url": "https://localhost/hook"},
        {"url": "https://169.254.169.254/latest/meta-data"},
        {"url": "https://[::ffff:10.0.0.1]/"},
        {"email": "a@b\r\nBcc: c@d"},
        {"email": "nobody"},
    ],
)
async def test_an_endpoint_that_can_not_be_is_refused(world: World, body: dict[str, str]) -> None:
    _, developer = await own(world)
    answer = await developer.post("/api/v1/alert-endpoints", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parameter_invalid")


async def test_an_alert_is_listed_with_exact_numbers_and_its_delivery_can_be_retried(world: World) -> None:
    tenant, developer = await own(world)
    await fund(world, tenant["id"])
    endpoint = (await developer.post("/api/v1/alert-endpoints", json={"email": "a@example.com"})).json()
    await spend(world, tenant["id"], "0.8")
    alerts = (await developer.get("/api/v1/alerts")).json()["data"]
    assert [(each["threshold"], each["used"], each["remaining"]) for each in alerts] == [
        ("80", "20", "5"),
        ("50", "20", "5"),
    ]
    assert (alerts[0]["unit"], alerts[0]["currency"], alerts[0]["scope_name"]) == ("money", "USD", "Acme")
    assert (await developer.get(f"/api/v1/alerts/{alerts[0]['id']}")).json() == alerts[0]
    await asyncio.to_thread(deliver_alerts, world.database.app_url, settings=Settings(), clock=world.clock)
    path = f"/api/v1/alert-deliveries?endpoint_id={endpoint['id']}&alert_id={alerts[0]['id']}"
    (delivery,) = (await developer.get(path)).json()["data"]
    assert (delivery["status"], delivery["last_error"]) == ("pending", "no mail server is set")
    retry = f"/api/v1/alert-deliveries/{delivery['id']}/retry"
    assert (await developer.post(retry)).status_code == 409
    async with world.engine.begin() as connection:
        await connection.execute(text("UPDATE alert_delivery SET status = 'dead', ended_at = now()"))
    dead = (await developer.get("/api/v1/alert-deliveries?status=dead")).json()["data"]
    assert {each["next_at"] for each in dead} == {None}
    retried = (await developer.post(retry)).json()
    assert (retried["id"], retried["status"], retried["attempts"]) == (delivery["id"], "pending", 0)


async def test_rules_are_set_changed_and_removed(world: World) -> None:
    tenant, developer = await own(world)
    await fund(world, tenant["id"])
    made = (await developer.post("/api/v1/alert-rules", json={"percents": [90, 30, 30]})).json()
    assert (made["percents"], made["remaining"], made["scope_kind"]) == ([30, 90], None, None)
    twice = await developer.post("/api/v1/alert-rules", json={})
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "conflict")
    path = f"/api/v1/alert-rules/{made['id']}"
    changed = (await developer.patch(path, json={"remaining": "20"})).json()
    assert (changed["percents"], changed["remaining"]) == ([30, 90], "20")
    await spend(world, tenant["id"], "0.3")
    told = [
        (each["kind"], each["threshold"]) for each in (await developer.get("/api/v1/alerts")).json()["data"]
    ]
    assert sorted(told) == [("percent", "30"), ("remaining", "20")]
    assert (await developer.patch(path, json={"remaining": None})).json()["remaining"] is None
    assert (await developer.delete(path)).json()["id"] == made["id"]
    assert (await developer.get("/api/v1/alert-rules")).json()["data"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"percents": [0]},
        {"percents": [101]},
        {"percents": list(range(1, 12))},
        {"remaining": "0"},
        {"remaining": "-1"},
        {"scope_id": "prj_1"},
        {"what": "concurrent"},
        {"window": "minute"},
    ],
)
async def test_a_rule_that_can_not_be_is_refused(world: World, body: dict[str, Any]) -> None:
    _, developer = await own(world)
    answer = await developer.post("/api/v1/alert-rules", json=body)
    assert answer.status_code == 400


async def test_nobody_makes_anything_for_another_tenant(world: World) -> None:
    victim = await world.tenant("Victim")
    project = await world.made(f"/tenants/{victim['id']}/projects", {"name": "p"})
    _, developer = await own(world)
    for path, body in (
        ("/alert-endpoints", {"tenant_id": victim["id"], "email": "a@example.com"}),
        ("/alert-rules", {"tenant_id": victim["id"]}),
        ("/alert-rules", {"scope_kind": "project", "scope_id": project["id"]}),
    ):
        assert (await developer.post(f"/api/v1{path}", json=body)).status_code == 404
    for path in ("alerts", "alert-endpoints", "alert-rules", "alert-deliveries"):
        answer = await developer.get(f"/api/v1/{path}", params={"tenant_id": victim["id"]})
        assert answer.status_code == 404


async def test_staff_says_for_which_tenant(world: World) -> None:
    tenant = await world.tenant("Acme")
    answer = await world.operator.post("/api/v1/alert-rules", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant_id")
    made = await world.made("/alert-rules", {"tenant_id": tenant["id"], "percents": []})
    assert made["percents"] == []


async def test_a_disabled_endpoint_gets_no_test_and_a_removed_one_is_gone(world: World) -> None:
    _, developer = await own(world)
    made = (await developer.post("/api/v1/alert-endpoints", json={"email": "a@example.com"})).json()
    path = f"/api/v1/alert-endpoints/{made['id']}"
    assert (await developer.post(f"{path}/test")).status_code == 201
    assert (await developer.post(f"{path}/test")).status_code == 409
    assert (await developer.patch(path, json={"status": "disabled"})).json()["status"] == "disabled"
    assert (await developer.post(f"{path}/test")).status_code == 409
    assert (await developer.delete(path)).json()["status"] == "removed"
    assert (await developer.get(path)).status_code == 404


async def test_a_viewer_looks_and_finance_acts(world: World) -> None:
    tenant, viewer = await own(world, "viewer")
    finance = await world.member("finance", tenant["id"])
    assert (await viewer.get("/api/v1/alerts")).status_code == 200
    assert (await viewer.post("/api/v1/alert-rules", json={})).status_code == 403
    assert (await finance.post("/api/v1/alert-rules", json={})).status_code == 201
