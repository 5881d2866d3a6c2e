"""An input is counted only where that is exact."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.catalog.snapshot import Model
from app.core import ids
from app.core.ids import BackendId, DeploymentId, ModelId
from app.gateway.body import parse
from app.gateway.exact_count import ExactCounter
from app.gateway.model import Endpoint
from scheduler.registry.model import BackendSpec
from scheduler.transport.client import EngineClient
from tests.app.gateway.engines import serve

MODEL = Model(ModelId("mdl_1"), "m", 4096, 1024, 64, 0, ids.deployment_id())
_MESSAGES = [{"role": "user", "content": "one two"}]
_IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]


async def count(
    members: dict[str, Any], *, engine: str = "vllm", answer: dict[str, Any] | None = None
) -> tuple[int | None, list[str]]:
    """What was counted, and what the engine was asked."""
    asked: list[str] = []

    def answering(path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(path)
        return answer

    async with serve(answering) as url:
        backend = BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), url, engine, "m", 8)
        client = EngineClient()
        counter = ExactCounter(client, backend_of=lambda _: backend)
        try:
            ask = parse(msgspec.json.encode({"model": "m", **members}), Endpoint.CHAT)
            return await counter.count(ask, MODEL), asked
        finally:
            await client.close()


async def test_the_engines_own_template_and_tokenizer_count() -> None:
    counted, asked = await count({"messages": _MESSAGES, "temperature": 0.2}, answer={"count": 11})
    assert (counted, asked) == (11, ["/tokenize"])


@pytest.mark.parametrize(
    "members",
    [
        {"messages": _MESSAGES, "response_format": {"type": "json_object"}},
        {"messages": _MESSAGES, "documents": [{"text": "a"}]},
        {"messages": _MESSAGES, "reasoning_effort": "high"},
        {"messages": _MESSAGES, "continue_final_message": True},
        {"messages": _MESSAGES, "something_new": 1},
        {"messages": _IMAGE},
    ],
)
async def test_what_may_shape_the_prompt_in_other_ways_is_not_counted(members: dict[str, Any]) -> None:
    assert await count(members, answer={"count": 11}) == (None, [])


@pytest.mark.parametrize(
    ("engine", "answer"),
    [("openai", {"count": 11}), ("vllm", None), ("vllm", {"count": "many"}), ("sglang", None)],
)
async def test_who_can_not_count_leaves_the_bound(engine: str, answer: dict[str, Any] | None) -> None:
    counted, _ = await count({"messages": _MESSAGES}, engine=engine, answer=answer)
    assert counted is None


async def test_without_a_living_backend_nobody_is_asked() -> None:
    client = EngineClient()
    counter = ExactCounter(client, backend_of=lambda _: None)
    ask = parse(msgspec.json.encode({"model": "m", "messages": _MESSAGES}), Endpoint.CHAT)
    assert await counter.count(ask, MODEL) is None
    await client.close()
