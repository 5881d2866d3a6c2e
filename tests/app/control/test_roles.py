"""Roles are sets of scopes, checked on the server; a tenant's members never hold staff's scopes."""

from __future__ import annotations

import pytest

from app.identity.model import Role, Scope, scopes_of
from tests.app.control.world import World


@pytest.mark.parametrize("role", list(Role))
def test_a_tenants_member_never_holds_more_than_staff_of_the_same_role(role: Role) -> None:
    assert scopes_of(role, staff=False) <= scopes_of(role, staff=True)


@pytest.mark.parametrize(
    "scope", [Scope.CREDIT_WRITE, Scope.FLEET_READ, Scope.PRICES_WRITE, Scope.MEMBERS_WRITE]
)
@pytest.mark.parametrize("role", list(Role))
def test_no_member_of_a_tenant_grants_credit_or_reaches_the_fleet(role: Role, scope: Scope) -> None:
    assert scope not in scopes_of(role, staff=False)


async def test_finance_of_the_operator_grants_credit_and_touches_nothing_else(world: World) -> None:
    tenant = await world.tenant("Acme")
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    finance = await world.member("finance")
    grant = {"amount": "5", "kind": "purchased", "reason": "order"}
    path = f"/api/v1/wallets/{wallet['id']}/grants"
    assert (await finance.post(path, json=grant, headers={"idempotency-key": "k"})).status_code == 201
    for route, body in (
        ("/tenants", {"name": "x", "currency": "USD"}),
        (f"/tenants/{tenant['id']}/projects", {"name": "x"}),
        ("/price-books", {"name": "x", "currency": "USD"}),
        ("/backends", {}),
        ("/members", {}),
    ):
        answer = await finance.post(f"/api/v1{route}", json=body)
        assert answer.status_code == 403, route
        assert answer.json()["error"]["code"] == "scope_missing"


async def test_finance_within_a_tenant_cannot_grant_itself_money(world: World) -> None:
    tenant = await world.tenant("Acme")
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    finance = await world.member("finance", tenant["id"])
    grant = {"amount": "5", "kind": "promo", "reason": "gift"}
    path = f"/api/v1/wallets/{wallet['id']}"
    headers = {"idempotency-key": "k"}
    assert (await finance.post(f"{path}/grants", json=grant, headers=headers)).status_code == 403
    assert (await finance.patch(path, json={"credit_limit": "5"}, headers=headers)).status_code == 403
    assert (await finance.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()["posted"] == "0"


async def test_a_developer_works_within_the_own_tenant_and_a_viewer_only_looks(world: World) -> None:
    tenant = await world.tenant("Acme")
    developer = await world.member("developer", tenant["id"])
    viewer = await world.member("viewer", tenant["id"])
    projects = f"/api/v1/tenants/{tenant['id']}/projects"
    project = (await developer.post(projects, json={"name": "one"})).json()
    keys = f"/api/v1/projects/{project['id']}/keys"
    assert (await developer.post(keys, json={"name": "k"})).status_code == 201
    assert (await viewer.post(projects, json={"name": "two"})).status_code == 403
    assert (await viewer.post(keys, json={"name": "k"})).status_code == 403
    assert [row["name"] for row in (await viewer.get(keys)).json()["data"]] == ["k"]
    assert (await developer.patch(f"/api/v1/tenants/{tenant['id']}", json={})).status_code == 403


@pytest.mark.parametrize(
    ("role", "of_a_tenant"), [("operator", True), ("developer", False), ("viewer", False)]
)
async def test_a_role_stands_where_it_makes_sense(world: World, role: str, of_a_tenant: bool) -> None:
    tenant = await world.tenant("Acme")
    body = {"email": "a@b.example", "role": role, "tenant_id": tenant["id"] if of_a_tenant else None}
    answer = await world.operator.post("/api/v1/members", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant_id")


async def test_a_member_makes_and_revokes_own_tokens_only(world: World) -> None:
    tenant = await world.tenant("Acme")
    viewer = await world.member("viewer", tenant["id"])
    made = (await viewer.post("/api/v1/access-tokens", json={"name": "laptop"})).json()
    laptop = world.client(made["token"])
    assert (await laptop.get("/api/v1/me")).status_code == 200
    assert (await world.operator.post(f"/api/v1/access-tokens/{made['id']}/revoke")).status_code == 404
    assert (await viewer.post(f"/api/v1/access-tokens/{made['id']}/revoke")).status_code == 200
    assert (await laptop.get("/api/v1/me")).status_code == 401
    listed = (await viewer.get("/api/v1/access-tokens")).text
    assert made["token"] not in listed


async def test_a_disabled_member_is_out_at_once_and_nobody_disables_themselves(world: World) -> None:
    tenant = await world.tenant("Acme")
    viewer = await world.member("viewer", tenant["id"])
    path = f"/api/v1/members/{(await viewer.get('/api/v1/me')).json()['id']}"
    assert (await world.operator.patch(path, json={"status": "disabled"})).json()["status"] == "disabled"
    assert (await viewer.get("/api/v1/me")).status_code == 401
    await world.operator.patch(path, json={"status": "active", "password": "another long password"})
    assert (await viewer.get("/api/v1/me")).status_code == 200
    me = (await world.operator.get("/api/v1/me")).json()["id"]
    assert (
        await world.operator.patch(f"/api/v1/members/{me}", json={"status": "disabled"})
    ).status_code == 409
    rows = (await world.operator.get("/api/v1/audit-log", params={"limit": 1})).json()["data"]
    assert rows[0]["after"]["password_changed"] is True
    assert "another long password" not in str(rows)


async def test_a_token_ends_at_its_time(world: World) -> None:
    body = {"name": "short", "expires_at": "2026-09-21T15:00:00Z"}
    made = (await world.operator.post("/api/v1/access-tokens", json=body)).json()
    client = world.client(made["token"])
    assert (await client.get("/api/v1/me")).status_code == 200
    world.clock.advance(3600)
    assert (await client.get("/api/v1/me")).status_code == 401
