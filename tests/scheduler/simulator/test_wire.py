"""The stand-in's answers have the shape of vLLM 0.32.0's, field for field and in order, as captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.transport.model import EngineRequest
from tests.scheduler.engines import running

CAPTURES = Path(__file__).parents[2] / "data" / "engine"
PLAIN = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "The capital of France is"}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
VALUES = frozenset(("object", "role", "finish_reason", "index", "type", "param", "code"))
"""Fields whose value is part of the shape."""


def shape(value: Any, name: str = "") -> Any:
    """A value with its field order and types, but without what differs from run to run."""
    if isinstance(value, dict):
        return [(key, shape(each, key)) for key, each in value.items()]
    if isinstance(value, list):
        return [shape(each) for each in value]
    return value if name in VALUES else type(value).__name__


def captured(name: str) -> tuple[int, bytes]:
    head, _, body = (CAPTURES / f"{name}.response.http").read_bytes().partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return int(head.split()[1]), body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return int(head.split()[1]), whole


def events(body: bytes) -> list[Any]:
    found = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return ["[DONE]" if line == b"[DONE]" else shape(msgspec.json.decode(line)) for line in found]


async def asked(path: str, fields: dict[str, Any], **options: Any) -> tuple[int, bytes]:
    async with running(**options) as (_, ask):
        answer = await ask(EngineRequest("POST", path, (), msgspec.json.encode(fields)))
        assert answer.status is not None
        return answer.status, answer.body


CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
WHOLE = [
    ("vllm-0.32.0-cpu/chat", CHAT, {**PLAIN, "max_tokens": 16}),
    ("vllm-0.32.0-cpu/completion", COMPLETION, {**PROMPT, "max_tokens": 6}),
    ("vllm-0.32.0-cpu/completion_batch", COMPLETION, {"prompt": ["a", "b"], "max_tokens": 6}),
    ("vllm-0.32.0-cpu/err_max_tokens_zero", CHAT, {**PLAIN, "max_tokens": 0}),
    ("vllm-0.32.0-cpu/err_unknown_model", CHAT, {**PLAIN, "model": "nope"}),
    ("vllm-0.32.0-cpu/err_route", "/nowhere", PLAIN),
    ("vllm-0.32.0-cpu/err_ctx_too_long", COMPLETION, {"prompt": "x" * 99_999}),
    ("vllm-0.32.0-cpu/err_method", "/v1/models", {}),
    ("vllm-0.32.0-cpu-overload/req4", CHAT, {"messages": [{"content": "[simulator fault=status:503]"}]}),
    (
        "vllm-0.32.0-cpu-faults/killcore_nonstream",
        CHAT,
        {"messages": [{"content": "[simulator fault=error]"}]},
    ),
]


@pytest.mark.parametrize(("name", "path", "fields"), WHOLE)
async def test_a_whole_answer_has_the_captured_shape(name: str, path: str, fields: dict[str, Any]) -> None:
    status, body = captured(name)
    found_status, found_body = await asked(
        path, fields, tokens=8 if path == CHAT else None, max_model_len=4096
    )
    assert found_status == status
    assert shape(msgspec.json.decode(found_body)) == shape(msgspec.json.decode(body))


STREAMS = [
    ("chat_stream", CHAT, {**PLAIN, "max_tokens": 16, "stream": True}, 8),
    ("chat_stream_usage", CHAT, {**PLAIN, "max_tokens": 16, **USAGE}, 8),
    ("chat_stream_usage_continuous", CHAT, {**PLAIN, "max_tokens": 16, **CONTINUOUS}, 8),
    (
        "chat_stream_continuous_only",
        CHAT,
        {**PLAIN, "max_tokens": 16, "stream": True, "stream_options": {"continuous_usage_stats": True}},
        8,
    ),
    ("completion_stream_usage", COMPLETION, {**PROMPT, "max_tokens": 6, **USAGE}, None),
]


@pytest.mark.parametrize(("name", "path", "fields", "tokens"), STREAMS)
async def test_a_stream_has_the_captured_events(
    name: str, path: str, fields: dict[str, Any], tokens: int | None
) -> None:
    _, body = captured(f"vllm-0.32.0-cpu/{name}")
    _, found = await asked(path, fields, tokens=tokens)
    assert events(found) == events(body)


async def test_two_choices_have_the_captured_events_in_an_order_of_their_own() -> None:
    _, body = captured("vllm-0.32.0-cpu/chat_n2_stream_usage")
    _, found = await asked(CHAT, {**PLAIN, "max_tokens": 4, "n": 2, **USAGE})
    assert sorted(map(repr, events(found))) == sorted(map(repr, events(body)))
    assert events(found)[-2:] == events(body)[-2:]


async def test_an_engine_that_dies_within_a_stream_sends_the_captured_error_and_done() -> None:
    _, body = captured("vllm-0.32.0-cpu-faults/killcore_stream")
    fields = {"messages": [{"content": "[simulator fault=error:3]"}], "stream": True}
    _, found = await asked(CHAT, fields)
    assert events(found)[:4] == events(body)[:4]
    assert events(found)[4:] == events(body)[-2:]
    assert found.split(b"\n\n")[-3] == body.split(b"\n\n")[-3], "to the byte"


async def test_continuous_usage_counts_each_choice_alone_and_the_last_chunk_all() -> None:
    _, body = await asked(CHAT, {**PLAIN, "max_tokens": 3, "n": 2, **CONTINUOUS})
    chunks = [msgspec.json.decode(e.removeprefix(b"data: ")) for e in body.split(b"\n\n")[:-2]]
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == [0, 0, 1, 1, 2, 2, 3, 3, 6]
