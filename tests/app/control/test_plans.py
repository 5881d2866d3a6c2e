"""Plans: sets of limits that tenants have from a day on; a change says whom it changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.control.world import World

TPM = {"level": "key", "what": "tokens", "window": "minute", "amount": 40_000}
RUNNING = {"level": "tenant", "what": "concurrent", "window": "running", "amount": 8}


async def _assign(world: World, tenant_id: str, plan_id: str | None, **more: Any) -> Any:
    body = {"plan_id": plan_id, **more}
    path = f"/tenants/{tenant_id}/plan-assignments"
    return (await world.made(path, body, **{"idempotency-key": f"{tenant_id}{body}"}))["assignment"]


async def _replace(world: World, plan_id: str, *limits: dict[str, Any], **asked: Any) -> dict[str, Any]:
    path = f"/api/v1/plans/{plan_id}/limits"
    answer = await world.operator.put(path, json={"limits": list(limits)}, params=asked)
    assert answer.is_success, answer.text
    return dict(answer.json())


async def test_a_plan_is_made_shown_renamed_and_archived_with_a_trail(world: World) -> None:
    plan = await world.made("/plans", {"name": "Team", "limits": [TPM, RUNNING]})
    assert [(row["level"], row["amount"], row["unit"]) for row in plan["limits"]] == [
        ("tenant", "8", "requests at once"),
        ("key", "40000", "tokens"),
    ]
    path = f"/api/v1/plans/{plan['id']}"
    renamed = (await world.operator.patch(path, json={"description": "up to ten"})).json()
    assert (renamed["name"], renamed["description"]) == ("Team", "up to ten")
    await world.made(f"/plans/{plan['id']}/archive")
    await world.made(f"/plans/{plan['id']}/archive")
    assert (await world.operator.get("/api/v1/plans")).json()["data"] == []
    kept = (await world.operator.get("/api/v1/plans", params={"archived": True})).json()["data"]
    assert [row["id"] for row in kept] == [plan["id"]]
    rows = (await world.operator.get("/api/v1/audit-log", params={"limit": 3})).json()["data"]
    assert [row["action"] for row in rows] == ["plan.archive", "plan.change", "plan.create"]


@pytest.mark.parametrize(
    "facts",
    [
        {"limits": [TPM, TPM]},
        {"limits": [{**TPM, "what": "picos", "window": "month"}]},
        {"limits": [{**TPM, "window": "running"}]},
        {"limits": [{**TPM, "level": "task"}]},
        {"currency": "usd"},
        {"price_book_id": "pbk_unknown"},
        {"name": ""},
    ],
)
async def test_what_can_be_no_plan_is_refused(world: World, facts: dict[str, Any]) -> None:
    answer = await world.operator.post("/api/v1/plans", json={"name": "Team", **facts})
    assert answer.status_code in (400, 409), answer.text
    assert (await world.operator.get("/api/v1/plans")).json()["data"] == []


async def test_a_plan_with_a_price_book_has_its_currency(world: World) -> None:
    book = await world.made("/price-books", {"name": "Partners", "currency": "EUR"})
    plan = await world.made("/plans", {"name": "Partner", "price_book_id": book["id"]})
    assert plan["currency"] == "EUR"
    wrong = {"name": "Other", "price_book_id": book["id"], "currency": "USD"}
    assert (await world.operator.post("/api/v1/plans", json=wrong)).status_code == 400
    tenant = await world.tenant("Acme")
    body, headers = {"plan_id": plan["id"]}, {"idempotency-key": "k"}
    path = f"/api/v1/tenants/{tenant['id']}/plan-assignments"
    assert (await world.operator.post(path, json=body, headers=headers)).status_code == 409


async def test_a_preview_says_what_changes_for_whom_and_changes_nothing(world: World) -> None:
    plan = await world.made("/plans", {"name": "Team", "limits": [TPM, RUNNING]})
    tenant = await world.tenant("Acme")
    await _assign(world, tenant["id"], plan["id"])
    own = {"what": "concurrent", "window": "running", "amount": 3, "reason": "small"}
    await world.made(f"/tenants/{tenant['id']}/limit-overrides", own, **{"idempotency-key": "o"})
    more = {**RUNNING, "amount": "16"}
    effect = await _replace(world, plan["id"], more, preview=True)
    assert effect["applied"] is False
    assert [
        (row["what"], row["before"] and row["before"]["amount"], row["after"] and row["after"]["amount"])
        for row in effect["changes"]
    ] == [("concurrent", "8", "16"), ("tokens", "40000", None)]
    assert [(row["tenant_id"], row["overrides"]) for row in effect["tenants"]] == [(tenant["id"], 1)]
    assert len((await world.operator.get(f"/api/v1/plans/{plan['id']}")).json()["limits"]) == 2
    await _replace(world, plan["id"], more)
    path = "/api/v1/limits"
    held = (await world.operator.get(path, params={"tenant_id": tenant["id"]})).json()["data"][1]
    assert (held["amount"], held["source"]["kind"]) == ("3", "override")
    row = (await world.operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"][0]
    assert row["action"] == "plan.replace_limits"
    assert (len(row["before"]["limits"]), row["after"]["limits"][0]["amount"]) == (2, "16")
    bad = await world.operator.put(
        f"/api/v1/plans/{plan['id']}/limits", json={"limits": [TPM, TPM]}, params={"preview": True}
    )
    assert bad.status_code == 409


async def test_plans_follow_one_another_and_a_scheduled_one_can_be_withdrawn(world: World) -> None:
    tenant = await world.tenant("Acme")
    team, crew = [(await world.made("/plans", {"name": name}))["id"] for name in ("Team", "Crew")]
    first = await _assign(world, tenant["id"], team)
    ahead = await _assign(world, tenant["id"], crew, effective_from="2036-01-01T00:00:00Z")
    path = f"/api/v1/tenants/{tenant['id']}/plan-assignments"
    rows = (await world.operator.get(path)).json()["data"]
    assert [(row["plan"], row["effective_to"]) for row in rows] == [
        ("Team", "2036-01-01T00:00:00Z"),
        ("Crew", None),
    ]
    await world.made(f"/plan-assignments/{ahead['id']}/withdraw")
    rows = (await world.operator.get(path)).json()["data"]
    assert [(row["id"], row["effective_to"]) for row in rows] == [(first["id"], None)]
    begun = await world.operator.post(f"/api/v1/plan-assignments/{first['id']}/withdraw")
    assert begun.status_code == 409
    assert await _assign(world, tenant["id"], None) is None
    ended = (await world.operator.get(path)).json()["data"][0]
    assert ended["effective_to"] is not None
    log = (await world.operator.get("/api/v1/audit-log", params={"limit": 2})).json()["data"]
    assert [(row["action"], row["tenant_id"]) for row in log] == [
        ("plan_assignment.create", tenant["id"]),
        ("plan_assignment.withdraw", tenant["id"]),
    ]


async def test_an_assignment_is_made_once_for_one_idempotency_key(world: World) -> None:
    tenant = await world.tenant("Acme")
    plan = await world.made("/plans", {"name": "Team"})
    path, body = f"/api/v1/tenants/{tenant['id']}/plan-assignments", {"plan_id": plan["id"]}
    assert (await world.operator.post(path, json=body)).status_code == 400
    answers = [
        await world.operator.post(path, json=body, headers={"idempotency-key": "once"}) for _ in range(2)
    ]
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
