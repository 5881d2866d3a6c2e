"""No member of a tenant and no key sees or touches another tenant: every route, every role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from tests.app.control.world import World

_SEES = ("developer", "viewer", "finance")
_BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/tenants/{tenant_id}/projects": {"name": "intruder"},
    "/api/v1/projects/{project_id}/keys": {"name": "intruder"},
    "/api/v1/keys/{key_id}/rotate": {"overlap_s": 0},
    "/api/v1/access-tokens": {"name": "mine"},
    "/api/v1/alert-endpoints": {"email": "me@intruder.example"},
    "/api/v1/alert-rules": {"percents": [1]},
    "/api/v1/tasks": {"project_id": "prj_" + "1" * 32, "name": "intruder"},
    "/api/v1/tasks/{task_id}": {"budget": "1"},
    "/api/v1/limits/dry-run": {"what": "requests", "window": "minute", "amount": 1},
}
_ELSEWHERE = {"day": "2026-12-01", "gap_id": "1", "parked_id": "1", "incarnation_id": "inc_" + "1" * 32}
"""Path parameters of the operators' own routes: no tenant's things."""
_OWN_ACTS = {
    ("POST", f"/api/v1/{name}")
    for name in ("access-tokens", "alert-endpoints", "alert-rules", "limits/dry-run")
}


_DEMAND_A_KEY = ("wallets", "plan-assignments", "limit-overrides")


@dataclass(frozen=True)
class Route:
    method: str
    path: str


_USAGE = {f"GET /api/v1/{name}" for name in ("usage", "metering-policy", "limits", "tasks")}
"""What an API key with `usage:read` reads, of its own."""
_ONE_TASK = Route("GET", "/api/v1/tasks/{task_id}")


@dataclass(frozen=True)
class Victim:
    """Another tenant's things: what the intruder must neither see nor change.   ids: by path parameter."""

    ids: dict[str, str]
    marks: frozenset[str]


def _routes(world: World) -> Iterator[Route]:
    app = world.app.app
    assert isinstance(app, FastAPI)
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            yield Route(method.upper(), path)


async def _victim(world: World) -> Victim:
    book = await world.made("/price-books", {"name": "Secret terms", "currency": "USD"})
    version = await world.made(f"/price-books/{book['id']}/versions")
    tenant = await world.tenant("Victim", price_book_id=book["id"])
    project = await world.made(f"/tenants/{tenant['id']}/projects", {"name": "victim-project"})
    key = await world.made(f"/projects/{project['id']}/keys", {"name": "victim-key"})
    wallet = (await world.operator.get(f"/api/v1/tenants/{tenant['id']}/wallet")).json()
    grant = {"amount": "123.456", "kind": "promo", "reason": "victim-gift"}
    await world.made(f"/wallets/{wallet['id']}/grants", grant, **{"idempotency-key": "v"})
    model = await world.made(
        "/models",
        {"name": "hidden", "context_limit": 10, "max_output_tokens": 5, "default_output_tokens": 5},
    )
    deployment = await world.made("/deployments", {"model_id": model["id"]})
    backend = await world.made(
        "/backends",
        {
            "deployment_id": deployment["id"],
            "base_url": "http://10.9.8.7:8000",
            "engine": "vllm",
            "served_model": "hidden",
        },
    )
    await world.member("viewer", tenant["id"])
    request_id = await _refusal(world, tenant["id"], project["id"], key_id=key["id"])
    me = (await world.operator.get("/api/v1/me")).json()["id"]
    watched = {"tenant_id": tenant["id"], "name": "victim-endpoint", "email": "victim-box@example.com"}
    endpoint = await world.made("/alert-endpoints", watched)
    delivery = await world.made(f"/alert-endpoints/{endpoint['id']}/test")
    rule = await world.made("/alert-rules", {"tenant_id": tenant["id"], "remaining": "123.456"})
    ids = await _limited(world, tenant["id"], project["id"]) | {
        "tenant_id": tenant["id"],
        "project_id": project["id"],
        "key_id": key["id"],
        "wallet_id": wallet["id"],
        "book_id": book["id"],
        "version_id": version["id"],
        "model": model["id"],
        "deployment_id": deployment["id"],
        "backend_id": backend["id"],
        "request_id": request_id,
        "member_id": me,
        "token_id": "tok_" + "0" * 32,
        "endpoint_id": endpoint["id"],
        "delivery_id": delivery["id"],
        "rule_id": rule["id"],
        "alert_id": await _alert(world, tenant["id"]),
    }
    words = {"Victim", "victim-", "Secret terms", "123.456", "10.9.8.7", key["key"]}
    return Victim(ids, frozenset(ids.values()) | words)


async def _limited(world: World, tenant_id: str, project_id: str) -> dict[str, str]:
    terms = {"what": "picos", "window": "month", "amount": "123.456"}
    plan = {"name": "victim-plan", "currency": "USD", "limits": [{"level": "tenant", **terms}]}
    made = await world.made("/plans", plan)
    path, key = f"/tenants/{tenant_id}", {"idempotency-key": "victim"}
    ahead = {"plan_id": made["id"], "effective_from": "2036-01-01T00:00:00Z"}
    assigned = await world.made(f"{path}/plan-assignments", ahead, **key)
    hidden = {**terms, "reason": "victim-override"}
    override = await world.made(f"{path}/limit-overrides", hidden, **{"idempotency-key": "victim-too"})
    task = await world.made("/tasks", {"project_id": project_id, "name": "victim-task", "budget": "123.456"})
    return {
        "plan_id": made["id"],
        "assignment_id": assigned["assignment"]["id"],
        "override_id": override["id"],
        "task_id": task["id"],
    }


async def _refusal(world: World, tenant_id: str, project_id: str, *, key_id: str) -> str:
    request_id = "req_" + "7" * 32
    row = text(
        "INSERT INTO refusal (request_id, tenant_id, project_id, key_id, incarnation_id, at, model_name,"
        " endpoint, reason, message, status) VALUES (:id, :tenant, :project, :key, 'inc_x', now(), 'hidden',"
        " 'chat.completions', 'balance_too_low', 'victim-message', 402)"
    )
    values = {"id": request_id, "tenant": tenant_id, "project": project_id, "key": key_id}
    async with world.engine.begin() as connection:
        await connection.execute(row, values)
    return request_id


async def _alert(world: World, tenant_id: str) -> str:
    alert_id = "alt_" + "7" * 32
    row = text(
        "INSERT INTO alert (id, tenant_id, allowance_id, kind, threshold, scope_kind, scope_id, scope_name,"
        " what, window_kind, limit_amount, spent, outstanding, at)"
        " SELECT :id, tenant_id, id, 'percent', 50, 'tenant', scope_id, 'victim-name', 'picos', 'balance',"
        " 2, 1, 0, now() FROM allowance WHERE tenant_id = :tenant"
        " AND window_kind = 'balance' AND scope_kind = 'tenant'"
    )
    async with world.engine.begin() as connection:
        await connection.execute(row, {"id": alert_id, "tenant": tenant_id})
    return alert_id


async def _state(world: World) -> dict[str, int]:
    """A digest of every table that a write could change, but for what an intruder makes of its own."""
    tables = ("tenant", "project", "api_key", "member", "wallet", "wallet_grant", "backend", "model")
    digests = {}
    async with world.engine.connect() as connection:
        limited = ("plan", "plan_limit", "plan_assignment", "limit_override", "task", "allowance")
        for table in (*tables, "deployment", "price_book", "price_version", "price", *limited):
            query = text(f"SELECT coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} t")
            digests[table] = int((await connection.execute(query)).scalar_one())
    return digests


async def _call(client: httpx.AsyncClient, route: Route, victim: Victim) -> httpx.Response:
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda found: (victim.ids | _ELSEWHERE)[found[1]], route.path)
    body = None if route.method in ("GET", "DELETE") else _BODIES.get(route.path, {})
    params = {"start_time": "1"} if "/organization/" in path else {}
    demanding = route.method != "GET" and any(word in path for word in _DEMAND_A_KEY)
    headers = {"idempotency-key": "intruder"} if demanding else {}
    return await client.request(route.method, path, json=body, params=params, headers=headers)


def _assert_kept(answer: httpx.Response, route: Route, victim: Victim, *, act: bool) -> None:
    where = f"{route.method} {route.path} → {answer.status_code} {answer.text[:300]}"
    asked = {(victim.ids | _ELSEWHERE)[name] for name in re.findall(r"\{(\w+)", route.path)}
    if asked or (act and (route.method, route.path) not in _OWN_ACTS):
        assert answer.status_code in (403, 404), where
    else:
        assert answer.status_code in (200, 201, 403), where
    seen = {mark for mark in victim.marks - asked if mark in answer.text}
    assert not seen, where


@pytest.mark.parametrize("role", _SEES)
async def test_a_member_of_one_tenant_reaches_nothing_of_another(world: World, role: str) -> None:
    victim = await _victim(world)
    own = await world.tenant("Intruder")
    client = await world.member(role, own["id"])
    before = await _state(world)
    routes = list(_routes(world))
    assert len(routes) > 40
    for route in routes:
        answer = await _call(client, route, victim)
        _assert_kept(answer, route, victim, act=route.method != "GET")
    assert await _state(world) == before


async def test_an_api_key_reaches_only_the_usage_of_its_own_project(world: World) -> None:
    victim = await _victim(world)
    own = await world.tenant("Intruder")
    project = await world.made(f"/tenants/{own['id']}/projects", {"name": "p"})
    key = await world.made(f"/projects/{project['id']}/keys", {"name": "k"})
    client = world.client(key["key"])
    before = await _state(world)
    for route in _routes(world):
        answer = await _call(client, route, victim)
        reads_usage = f"{route.method} {route.path}" in _USAGE or route.path.startswith("/v1/")
        expected = 404 if route == _ONE_TASK else 200 if reads_usage else 403
        assert answer.status_code == expected, f"{route} {answer.text[:300]}"
        asked = {victim.ids["task_id"]} if route == _ONE_TASK else set()
        assert not {mark for mark in victim.marks - asked if mark in answer.text}
    assert await _state(world) == before


async def test_without_a_credential_every_route_is_closed(world: World) -> None:
    victim = await _victim(world)
    for secret in (None, "sya_" + "x" * 43, "sk-sy-" + "x" * 43, "Zm9v", ""):
        client = world.client(secret)
        for route in _routes(world):
            answer = await _call(client, route, victim)
            assert answer.status_code == 401, f"{route} {answer.text[:300]}"
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/api/v1/usage", "/api/v1/requests"])
async def test_a_filter_by_another_tenant_is_refused(world: World, path: str) -> None:
    victim = await _victim(world)
    own = await world.tenant("Intruder")
    client = await world.member("viewer", own["id"])
    for name in ("project_id", "key_id"):
        answer = await client.get(path, params={name: victim.ids[name]})
        assert answer.json()["data"] == []
    answer = await client.get(path, params={"tenant_id": victim.ids["tenant_id"]})
    assert answer.status_code == 404


async def test_an_unknown_id_and_another_tenants_id_get_the_same_answer(world: World) -> None:
    victim = await _victim(world)
    own = await world.tenant("Intruder")
    client = await world.member("viewer", own["id"])
    for name, prefix in (("tenant", "tenants"), ("project", "projects"), ("key", "keys")):
        theirs = victim.ids[f"{name}_id"]
        unknown = theirs[:4] + "f" * 32
        real, none = [(await client.get(f"/api/v1/{prefix}/{each}")) for each in (theirs, unknown)]
        assert real.status_code == none.status_code == 404
        assert _without_ids(real.json(), theirs) == _without_ids(none.json(), unknown)


def _without_ids(body: dict[str, Any], asked: str) -> str:
    error = body["error"] | {"request_id": ""}
    return str(error).replace(asked, "ID")
