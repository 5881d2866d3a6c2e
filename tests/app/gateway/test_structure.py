"""No body costs more memory than its bytes, whatever it is made of."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import Rejected
from app.gateway.body import parse
from app.gateway.model import Endpoint
from app.gateway.structure import MAX_VALUES, count_texts, depth, is_too_fine

_MANY = 1_000_000
_CHAT = b'{"model":"m","messages":[{"content":"a"}],'


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, b'{"model":"m","messages":[' + b"{}," * _MANY + b"{}]}"),
        (Endpoint.CHAT, b'{"model":"m","messages":[{"content":[' + b"{}," * _MANY + b"{}]}]}"),
        (Endpoint.CHAT, _CHAT + b'"priority":1,' + b'"":1,' * _MANY + b'"x":1}'),
        (Endpoint.CHAT, _CHAT + b'"tools":[' + b"[]," * _MANY + b"1]}"),
        (Endpoint.CHAT, _CHAT + b'"x":[' + b'"\\\\",' * _MANY + b"1]}"),
        (Endpoint.COMPLETIONS, b'{"model":"m","prompt":[' + b"[]," * _MANY + b"[]]}"),
        (Endpoint.COMPLETIONS, b'{"model":"m","prompt":[' + b'"",' * _MANY + b'""]}'),
        (Endpoint.COMPLETIONS, b'{"model":"m","prompt":[[' + b'"",' * _MANY + b'""]]}'),
    ],
    ids=["messages", "parts", "members", "tools", "texts", "lists", "prompts", "nested"],
)
def test_a_body_of_countless_parts_is_refused_before_any_is_built(endpoint: Endpoint, body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Rejected) as refusal:
            parse(body, endpoint)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "text", [b'{\\"a\\":[1]},' * 200_000, b"[{" * 200_000, b"a" * 10**6], ids=["json", "brackets", "letters"]
)
def test_a_long_text_is_one_value_whatever_it_says(text: bytes) -> None:
    body = b'{"model":"m","messages":[{"content":"' + text + b'"}]}'
    assert not is_too_fine(body)
    assert parse(body, Endpoint.CHAT).is_text


def test_a_long_prompt_of_tokens_is_one_prompt() -> None:
    body = b'{"model":"m","prompt":[' + b"1000," * MAX_VALUES * 2 + b"1]}"
    assert parse(body, Endpoint.COMPLETIONS).prompts == 1


_element = st.text() | st.lists(st.integers() | st.text(), max_size=3)


@given(st.lists(_element, max_size=12), st.integers(1, 12))
def test_texts_and_lists_are_counted_up_to_the_limit(prompts: list[Any], most: int) -> None:
    assert count_texts(msgspec.json.encode(prompts), most=most) == min(len(prompts), most + 1)


_nested = st.recursive(
    st.text(alphabet='[]{}"\\a') | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _deep(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_deep, value), default=0) if isinstance(value, list) else 0


@given(_nested)
def test_depth_is_that_of_the_decoded_value(value: Any) -> None:
    assert depth(msgspec.json.encode(value)) == _deep(value)
