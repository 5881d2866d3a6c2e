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
