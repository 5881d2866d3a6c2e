"""Models, deployments and backends: who is offered, who serves, who answers a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.app.catalog.small_engine import serve_models
from tests.app.control.world import World

LIMITS = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}


@pytest.fixture
async def deployment(world: World) -> dict[str, Any]:
    model = await world.made("/models", {"name": "org/model-a", **LIMITS})
    return await world.made("/deployments", {"model_id": model["id"]})


def _backend(deployment: dict[str, Any], **facts: Any) -> dict[str, Any]:
    usual = {"base_url": "http://10.0.0.7:8000", "engine": "vllm", "served_model": "served"}
    return {"deployment_id": deployment["id"], **usual, **facts}


@pytest.fixture
async def engine_url() -> AsyncIterator[str]:
    async with serve_models("served") as url:
        yield url


async def test_an_engine_that_serves_the_model_passes_the_test(
    world: World, deployment: dict[str, Any], engine_url: str
) -> None:
    body = _backend(deployment, base_url=engine_url)
    assert (await world.operator.post("/api/v1/backends?test=true", json=body)).status_code == 201


async def test_an_engine_that_serves_another_model_fails_the_test_and_is_not_added(
    world: World, deployment: dict[str, Any], engine_url: str
) -> None:
    body = _backend(deployment, base_url=engine_url, served_model="other")
    answer = await world.operator.post("/api/v1/backends?test=true", json=body)
    assert answer.status_code == 409
    assert "served" in answer.json()["error"]["message"]
    assert (await world.operator.get("/api/v1/backends")).json()["data"] == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://u:p@host",
        "http://host:99999",
        "http://host?x=1",
        "http://host#x",
        "http://ho\nst",
        "http://a b",
        "http://169.254.169.254",
        "http://[fe80::1]:8000",
        "x",
    ],
)
async def test_an_address_that_is_no_plain_url_is_refused(
    world: World, deployment: dict[str, Any], url: str
) -> None:
    answer = await world.operator.post("/api/v1/backends", json=_backend(deployment, base_url=url))
    assert answer.status_code == 400
    assert "ngine" in answer.json()["error"]["message"]
    assert "u:p" not in answer.text


async def test_a_backend_drains_comes_back_and_once_removed_stays_so(
    world: World, deployment: dict[str, Any]
) -> None:
    backend = await world.made("/backends", _backend(deployment))
    path = f"/api/v1/backends/{backend['id']}"
    assert (await world.operator.post(f"{path}/drain")).json()["status"] == "draining"
    assert (await world.operator.post(f"{path}/undrain")).json()["status"] == "active"
    assert (await world.operator.patch(path, json={"weight": 7})).json()["weight"] == 7
    assert (await world.operator.delete(path)).json()["status"] == "removed"
    assert (await world.operator.delete(path)).status_code == 200
    assert (await world.operator.post(f"{path}/undrain")).status_code == 409
    assert (await world.operator.get("/api/v1/backends")).json()["data"] == []
    assert (await world.operator.get(path)).json()["status"] == "removed"
    assert (await world.operator.post("/api/v1/backends", json=_backend(deployment))).status_code == 201


async def test_a_deployment_has_one_backend_at_an_address_and_a_model_one_deployment(
    world: World, deployment: dict[str, Any]
) -> None:
    await world.made("/backends", _backend(deployment))
    doubled = await world.operator.post("/api/v1/backends", json=_backend(deployment))
    assert doubled.json()["error"]["message"] == "The deployment has a backend at this address."
    second = await world.operator.post("/api/v1/deployments", json={"model_id": deployment["model_id"]})
    assert second.json()["error"]["message"] == "The model has a deployment."


async def test_a_model_is_found_by_id_and_by_a_name_with_slashes(
    world: World, deployment: dict[str, Any]
) -> None:
    by_name = await world.operator.get("/api/v1/models/org/model-a")
    by_id = await world.operator.get(f"/api/v1/models/{deployment['model_id']}")
    assert by_name.json() == by_id.json()


async def test_a_name_in_the_form_of_an_id_is_refused(world: World) -> None:
    answer = await world.operator.post("/api/v1/models", json={"name": "mdl_" + "0" * 32, **LIMITS})
    assert answer.status_code == 400


async def test_a_tenant_sees_published_models_only(world: World, deployment: dict[str, Any]) -> None:
    await world.priced_model("offered")
    tenant = await world.tenant("Acme")
    viewer = await world.member("viewer", tenant["id"])
    listed = (await viewer.get("/api/v1/models")).json()["data"]
    assert [model["name"] for model in listed] == ["offered"]
    assert (await viewer.get("/api/v1/models/org/model-a")).status_code == 404
    await world.operator.patch("/api/v1/models/offered", json={"status": "retired"})
    assert (await viewer.get("/api/v1/models")).json()["data"] == []
