"""Limits as data: what holds, where it comes from, how it stands, and how it is changed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.control.world import World

TPM = {"what": "tokens", "window": "minute", "amount": 40_000, "burst": 50_000}
MONTH = {"what": "picos", "window": "month", "amount": "25.5"}


class Acme:
    """A tenant with a plan, a project and a key."""

    def __init__(self, world: World, tenant: dict[str, Any], project: dict[str, Any], key: dict[str, Any]):
        self.world, self.tenant, self.project, self.key = world, tenant, project, key
        self.tenant_id, self.path = tenant["id"], f"/tenants/{tenant['id']}"

    async def limits(self, client: httpx.AsyncClient | None = None, **asked: str) -> dict[str, Any]:
        answer = await (client or self.world.operator).get("/api/v1/limits", params=asked)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def override(self, **terms: Any) -> dict[str, Any]:
        body = {"reason": "Launch week"} | terms
        return await self.world.made(f"{self.path}/limit-overrides", body, **{"idempotency-key": str(body)})


@pytest.fixture
async def acme(world: World) -> Acme:
    tenant = await world.tenant("Acme", timezone="Europe/Berlin")
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "chatbot"})
    key = await world.made(f"/projects/{project['id']}/keys", {"name": "ci"})
    terms = [{"level": "key", **TPM}, {"level": "project", **MONTH}]
    plan = await world.made("/plans", {"name": "Team", "currency": "USD", "limits": terms})
    body = {"plan_id": plan["id"]}
    await world.made(f"/tenants/{tenant['id']}/plan-assignments", body, **{"idempotency-key": "a"})
    return Acme(world, tenant, project, key)


async def test_a_keys_limits_say_where_each_comes_from(acme: Acme) -> None:
    shown = await acme.limits(key_id=acme.key["id"])
    assert [row["says"] for row in shown["data"]] == [
        "the tenant: 0 USD in all, from its wallet",
        "this project: 25.5 USD per month, from plan Team",
        "this key: 40000 tokens per minute, from plan Team",
    ]
    rate = shown["data"][2]
    assert (rate["amount"], rate["burst"], rate["used"], rate["leased"], rate["available"]) == (
        "40000",
        "50000",
        "0",
        "0",
        "50000",
    )
    assert (rate["source"]["kind"], rate["source"]["name"], rate["scope_name"]) == ("plan", "Team", "ci")
    assert (rate["peak"], rate["refused"]["count"], shown["peaks_known"]) == (None, 0, True)
    assert shown["timezone"] == "Europe/Berlin"


async def test_an_override_stands_before_the_plan_until_it_is_revoked(world: World, acme: Acme) -> None:
    terms = {**TPM, "amount": "90000", "burst": None, "scope_kind": "key", "scope_id": acme.key["id"]}
    made = await acme.override(**terms, expires_at="2036-01-01T00:00:00Z")
    rate = (await acme.limits(key_id=acme.key["id"]))["data"][2]
    assert rate["says"] == "this key: 90000 tokens per minute, from override Launch week"
    assert rate["source"]["until"] == "2036-01-01T00:00:00Z"
    assert (rate["amount"], rate["burst"]) == ("90000", "90000")
    assert 50_000 <= int(rate["available"]) <= 90_000
    listed = (await world.operator.get(f"/api/v1{acme.path}/limit-overrides")).json()["data"]
    assert [row["id"] for row in listed] == [made["id"]]
    await world.made(f"/limit-overrides/{made['id']}/revoke")
    assert (await acme.limits(key_id=acme.key["id"]))["data"][2]["source"]["name"] == "Team"
    assert (await world.operator.get(f"/api/v1{acme.path}/limit-overrides")).json()["data"] == []
    ended = await world.operator.get(f"/api/v1{acme.path}/limit-overrides", params={"ended": True})
    assert ended.json()["data"][0]["revoked_at"] is not None
    rows = (await world.operator.get("/api/v1/audit-log", params={"limit": 2})).json()["data"]
    assert [row["action"] for row in rows] == ["limit_override.revoke", "limit_override.create"]
    assert (rows[0]["before"]["revoked_at"], rows[0]["tenant_id"]) == (None, acme.tenant_id)


async def test_no_limit_is_an_override_without_an_amount(acme: Acme) -> None:
    await acme.override(what="concurrent", window="running", amount=None)
    shown = (await acme.limits(tenant_id=acme.tenant_id))["data"][1]
    assert (shown["amount"], shown["allowance_id"]) == (None, None)
    assert shown["says"] == "the tenant: no limit of requests at once, from override Launch week"


@pytest.mark.parametrize(
    "terms",
    [
        {"amount": 1.5},
        {"amount": True},
        {"amount": "1.5"},
        {"amount": -1},
        {"amount": "much"},
        {"window": "month", "burst": 5},
        {"what": "picos"},
        {"model": "unknown"},
        {"scope_kind": "project"},
        {"scope_kind": "key", "scope_id": "key_unknown"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"effective_from": "2020-01-01T00:00:00Z"},
    ],
)
async def test_what_can_be_no_limit_is_refused(world: World, acme: Acme, terms: dict[str, Any]) -> None:
    body = {"what": "tokens", "window": "minute", "amount": 1, "reason": "r"} | terms
    headers = {"idempotency-key": "k"}
    answer = await world.operator.post(f"/api/v1{acme.path}/limit-overrides", json=body, headers=headers)
    assert answer.status_code in (400, 404, 409), answer.text
    assert answer.json()["error"]["message"]


async def test_an_api_key_sees_the_limits_that_it_has_and_no_others(world: World, acme: Acme) -> None:
    other = await world.made(f"{acme.path}/projects", {"name": "other"})
    client = world.client(acme.key["key"])
    shown = await acme.limits(client)
    assert [row["scope_id"] for row in shown["data"]] == [
        acme.tenant_id,
        acme.project["id"],
        acme.key["id"],
    ]
    for asked in ({"project_id": other["id"]}, {"key_id": "key_other"}, {"tenant_id": "ten_other"}):
        assert (await client.get("/api/v1/limits", params=asked)).status_code == 404


async def test_a_tenants_members_see_their_limits_and_change_none(world: World, acme: Acme) -> None:
    stranger = await world.tenant("Stranger")
    for role in ("viewer", "developer", "finance"):
        member, outsider = await world.member(role, acme.tenant_id), await world.member(role, stranger["id"])
        assert len((await acme.limits(member, project_id=acme.project["id"]))["data"]) == 2
        assert [row["name"] for row in (await member.get("/api/v1/plans")).json()["data"]] == ["Team"]
        assert (await outsider.get("/api/v1/plans")).json()["data"] == []
        for asked in ({"key_id": acme.key["id"]}, {"project_id": acme.project["id"]}):
            assert (await outsider.get("/api/v1/limits", params=asked)).status_code == 404
        own = {"what": "requests", "window": "minute", "amount": 1}
        tried = await outsider.post("/api/v1/limits/dry-run", json=own | {"key_id": acme.key["id"]})
        assert tried.status_code == 404
        body = {"reason": "more", **TPM}
        headers = {"idempotency-key": "k"}
        path = f"/api/v1{acme.path}/limit-overrides"
        assert (await member.post(path, json=body, headers=headers)).status_code == 403
        assert (await member.post("/api/v1/plans", json={"name": "Mine"})).status_code == 403


async def test_a_limit_is_tried_before_it_is_set(world: World, acme: Acme) -> None:
    body = {"what": "tokens", "window": "minute", "amount": 100, "key_id": acme.key["id"]}
    found = await world.made("/limits/dry-run", body)
    assert found["says"] == "would have refused 0 of 0 requests"
    assert len(found["days"]) == 8
    assert found["timezone"] == "Europe/Berlin"
    assert "full bucket" in " ".join(found["notes"])
    asked = body | {"from": "2026-01-01T00:00:00Z"}
    answer = await world.operator.post("/api/v1/limits/dry-run", json=asked)
    assert answer.status_code == 400
    assert "92 days" in answer.json()["error"]["message"]
    answer = await world.operator.post("/api/v1/limits/dry-run", json={**body, "window": "month", "burst": 1})
    assert answer.json()["error"]["param"] == "burst"


async def test_ids_that_do_not_belong_together_and_no_id_at_all_are_refused(world: World, acme: Acme) -> None:
    other = await world.tenant("Other")
    for asked in ({"tenant_id": other["id"], "key_id": acme.key["id"]}, {}):
        answer = await world.operator.get("/api/v1/limits", params=asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant_id")


async def test_a_project_clamps_and_a_suspension_cuts_if_it_is_so_said(world: World, acme: Acme) -> None:
    path = f"/api/v1/projects/{acme.project['id']}"
    assert (await world.operator.patch(path, json={"clamp_output": True})).json()["clamp_output"] is True
    row = (await world.operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"][0]
    assert (row["before"]["clamp_output"], row["after"]["clamp_output"]) == (False, True)
    path = f"/api/v1{acme.path}"
    assert (await world.operator.patch(path, json={"on_suspend": "cut"})).json()["on_suspend"] == "cut"
    assert (await world.operator.patch(path, json={"on_suspend": "later"})).status_code == 400
