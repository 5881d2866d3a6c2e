"""JSON that a chat template prints anew weighs more than its bytes: the bound knows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.body import parse
from app.gateway.model import Ask, Endpoint
from app.gateway.rendered import MAX_BYTES, rendered_bytes
from billing.metering.bounds import RENDERED_GROWTH, input_bound

_HI = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _chat(*messages: dict[str, Any], **members: Any) -> Ask:
    return parse(msgspec.json.encode({"model": "m", "messages": [_HI, *messages], **members}), Endpoint.CHAT)


def _bound(ask: Ask, *, context_limit: int = 10**9) -> int:
    return input_bound(
        len(ask.body),
        prompts=1,
        context_limit=context_limit,
        is_text=ask.is_text,
        rendered_bytes=ask.rendered_bytes,
    )


def test_plain_messages_are_weighed_by_their_bytes_alone() -> None:
    assert _chat().rendered_bytes == 0
    assert _chat(tools=None).is_text


@pytest.mark.parametrize(
    "member", ["tools", "functions", "documents", "response_format", "chat_template_kwargs"]
)
def test_each_member_that_templates_print_counts(member: str) -> None:
    value = [_TOOL] * 5
    assert _chat(**{member: value}).rendered_bytes == len(msgspec.json.encode(value))


def test_calls_of_tools_and_their_results_count() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "[1,1,1]"}
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    for message in (call, result, old):
        assert _chat(message).rendered_bytes > len(msgspec.json.encode(list(message.values())[-1]))


def test_a_list_that_a_template_prints_with_blanks_stays_below_the_bound() -> None:
    # Tokenizers that part digits make three tokens of `1, `: one of each byte that is printed.
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [1] * 3000}}}]
    assert _bound(_chat(tools=tools)) > len(json.dumps(tools))


_scalars = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([1e15, 1e14, -1e9, 1e-7])
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)


@given(st.lists(_json, min_size=1).map(lambda leaves: [*leaves, *[1e15] * 3]))
def test_no_json_is_printed_longer_than_its_growth(value: Any) -> None:
    raw = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for exponent in ("15", "14", "9"):
        raw = raw.replace("1" + "0" * int(exponent) + ".0", "1e" + exponent)
    assert json.loads(raw) == value
    rendered = rendered_bytes([msgspec.Raw(raw.encode())], results=0)
    if rendered is not None:
        assert len(json.dumps(value)) <= rendered * RENDERED_GROWTH


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 40 + b"]" * 40,
        b'["]",' * 40 + b"1" + b"]" * 40,
        b'["\\"]",' * 40 + b"1" + b"]" * 40,
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b"[" + b"1," * MAX_BYTES + b"1]",
    ],
    ids=["deep", "hidden", "escaped", "objects", "long"],
)
def test_what_no_factor_bounds_is_bounded_by_the_context(value: bytes) -> None:
    ask = parse(b'{"model":"m","messages":[{"content":"hi"}],"tools":' + value + b"}", Endpoint.CHAT)
    assert not ask.is_text
    assert _bound(ask, context_limit=4096) == 4096


def test_brackets_in_texts_are_no_depth() -> None:
    assert _chat(tools=[{"description": "[" * 1000}]).is_text
