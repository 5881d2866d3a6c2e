"""Every error has one shape, and none tells more than it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.control.application import create_app
from app.core.database import connect_engine
from tests.app.control.world import World

LIMITS = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}


def _error(answer: httpx.Response) -> dict[str, Any]:
    error = answer.json()["error"]
    assert error["request_id"] == answer.headers["x-request-id"]
    assert error["message"]
    return dict(error)


async def test_a_wrong_body_names_each_field_that_is_wrong(world: World) -> None:
    answer = await world.operator.post("/api/v1/tenants", json={"name": "", "currency": "usd", "colour": 1})
    error = _error(answer)
    assert (answer.status_code, error["code"]) == (400, "parameter_invalid")
    assert {field["path"] for field in error["fields"]} == {"body.name", "body.currency", "body.colour"}


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"name":"a\\u0000b","currency":"USD"}',
        b'{"name":"\\ud800"}',
        b"[" * 9000,
    ],
)
async def test_a_body_that_is_no_such_object_is_refused(world: World, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = await world.operator.post("/api/v1/tenants", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert _error(answer)["code"] in ("parameter_invalid", "body_invalid")


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read_whole(world: World) -> None:
    answer = await world.operator.post("/api/v1/tenants", content=b"x" * (1 << 21))
    assert answer.status_code == 413
    assert _error(answer)["code"] == "body_too_large"


async def test_unknown_routes_and_methods_have_the_same_shape(world: World) -> None:
    nowhere = await world.operator.get("/api/v1/nowhere")
    assert (nowhere.status_code, _error(nowhere)["code"]) == (404, "route_unknown")
    wrong = await world.operator.put("/api/v1/tenants")
    assert (wrong.status_code, _error(wrong)["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/tenants/x%00y", "/keys/%ff", "/models/..%2f..", "/requests/" + "x" * 5000]
)
async def test_an_impossible_id_is_a_clear_4xx(world: World, path: str) -> None:
    answer = await world.operator.get(f"/api/v1{path}")
    assert answer.status_code in (400, 404), answer.text
    assert len(_error(answer)["message"]) < 300


async def test_a_doubled_name_is_a_conflict_that_says_so(world: World) -> None:
    await world.made("/models", {"name": "m", **LIMITS})
    answer = await world.operator.post("/api/v1/models", json={"name": "m", **LIMITS})
    assert (answer.status_code, _error(answer)["message"]) == (409, "There is a model of this name.")


async def test_limits_that_contradict_each_other_are_refused(world: World) -> None:
    wrong = LIMITS | {"default_output_tokens": 9000}
    answer = await world.operator.post("/api/v1/models", json={"name": "m", **wrong})
    assert answer.status_code == 400


async def test_null_is_refused_where_nothing_can_be_nothing(world: World) -> None:
    tenant = await world.tenant("Acme")
    path = f"/api/v1/tenants/{tenant['id']}"
    assert (await world.operator.patch(path, json={"name": None})).status_code == 400
    assert (await world.operator.patch(path, json={"price_book_id": None})).status_code == 200


async def test_a_timezone_that_does_not_exist_is_refused(world: World) -> None:
    body = {"name": "Acme", "currency": "USD", "timezone": "Mars/Olympus"}
    answer = await world.operator.post("/api/v1/tenants", json=body)
    assert (answer.status_code, _error(answer)["param"]) == (400, "timezone")


async def test_a_closed_tenant_stays_closed(world: World) -> None:
    tenant = await world.tenant("Acme")
    path = f"/api/v1/tenants/{tenant['id']}"
    assert (await world.operator.patch(path, json={"status": "closed"})).status_code == 200
    assert (await world.operator.patch(path, json={"status": "active"})).status_code == 409


class _Broken:
    """An engine whose every transaction fails in a way that nobody foresaw."""

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        raise RuntimeError("a secret detail")
        yield


async def test_what_nobody_foresaw_is_a_500_that_tells_nothing_but_its_id() -> None:
    app = create_app(cast(AsyncEngine, _Broken()))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control.example") as client:
        answer = await client.get("/api/v1/me")
    assert (answer.status_code, _error(answer)["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


async def test_with_the_database_away_the_answer_is_503_with_a_retry_after() -> None:
    engine = connect_engine("postgresql://nobody@127.0.0.1:1/nothing")
    transport = httpx.ASGITransport(app=create_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://control.example") as client:
        answer = await client.get("/api/v1/me", headers={"authorization": "Bearer sya_x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = _error(answer)
    assert (error["code"], error["retryable"]) == ("dependency_unavailable", True)
    await engine.dispose()


@pytest.mark.parametrize(
    "query",
    [
        "/api/v1/usage?to=9999-12-31T23:59:59Z",
        "/api/v1/usage?from=0001-01-01T00:00:00%2B14:00",
        "/api/v1/usage?from=9999-12-31T23:59:59-14:00",
        "/api/v1/requests?from=0001-01-01T00:00:00%2B14:00",
        "/v1/organization/costs?start_time=0&end_time=253402300799&page=page_253402300000",
        "/v1/organization/costs?start_time=253402300799",
    ],
)
async def test_a_moment_at_the_end_of_all_calendars_is_refused(world: World, query: str) -> None:
    answer = await world.operator.get(query)
    assert (answer.status_code, _error(answer)["code"]) == (400, "parameter_invalid")


@pytest.mark.parametrize("edge", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00"])
async def test_no_token_ends_at_the_end_of_all_calendars(world: World, edge: str) -> None:
    body = {"name": "x", "expires_at": edge}
    answer = await world.operator.post("/api/v1/access-tokens", json=body)
    assert (answer.status_code, _error(answer)["code"]) == (400, "parameter_invalid")


async def test_metrics_are_not_told_where_tenants_come_by(world: World) -> None:
    answer = await world.operator.get("/metrics")
    assert (answer.status_code, _error(answer)["code"]) == (404, "route_unknown")
