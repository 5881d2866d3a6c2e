"""The path of a model's tokenizer: its form is checked, it can be taken away, and tenants don't see it."""

from __future__ import annotations

import pytest

from tests.app.control.world import World

LIMITS = {"context_limit": 8192, "max_output_tokens": 4096, "default_output_tokens": 512}
PATH = "/srv/models/qwen3-8b/tokenizer.json"


async def test_a_models_tokenizer_is_set_changed_and_taken_away(world: World) -> None:
    made = await world.made("/models", {"name": "qwen3-8b", "tokenizer": PATH, **LIMITS})
    assert made["tokenizer"] == PATH
    route = f"/api/v1/models/{made['id']}"
    other = await world.operator.patch(route, json={"tokenizer": "/other/tokenizer.json"})
    assert other.json()["tokenizer"] == "/other/tokenizer.json"
    assert (await world.operator.patch(route, json={"tokenizer": None})).json()["tokenizer"] is None
    assert (await world.made("/models", {"name": "plain", **LIMITS}))["tokenizer"] is None


@pytest.mark.parametrize(
    "path", ["tokenizer.json", "", "/srv/model.gguf", "/a\n.json", "/" + "a" * 1024 + ".json"]
)
async def test_what_is_no_path_of_a_json_file_is_refused(world: World, path: str) -> None:
    answer = await world.operator.post(
        "/api/v1/models", json={"name": "qwen3-8b", "tokenizer": path, **LIMITS}
    )
    assert answer.status_code == 400
    assert "tokenizer" in answer.json()["error"]["message"]


async def test_tenants_do_not_see_where_the_operator_keeps_files(world: World) -> None:
    model = await world.priced_model("model-a")
    await world.operator.patch(f"/api/v1/models/{model['id']}", json={"tokenizer": PATH})
    tenant = await world.tenant("Acme")
    viewer = await world.member("viewer", tenant["id"])
    for route in ("/api/v1/models", "/api/v1/models/model-a"):
        assert PATH in (await world.operator.get(route)).text
        shown = await viewer.get(route)
        assert shown.status_code == 200
        assert PATH not in shown.text
