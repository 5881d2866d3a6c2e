"""What a body asks; and that no body, however broken, does more than be refused with its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import Rejected, RejectReason
from app.gateway.body import ENGINE_ONLY, parse
from app.gateway.model import Ask, Endpoint, UsageWish

_MESSAGES = [{"role": "user", "content": "hi"}]


def _chat(**members: Any) -> Ask:
    return parse(msgspec.json.encode({"model": "m", "messages": _MESSAGES, **members}), Endpoint.CHAT)


def _refused(body: bytes, endpoint: Endpoint = Endpoint.CHAT) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        parse(body, endpoint)
    assert refusal.value.status == 400
    return refusal.value


def test_a_plain_body_passes_as_it_came() -> None:
    body = msgspec.json.encode({"model": "m", "messages": _MESSAGES, "temperature": 0.5})
    ask = parse(body, Endpoint.CHAT)
    assert ask.body is body
    assert (ask.model, ask.streamed, ask.max_tokens, ask.choices, ask.prompts) == ("m", False, None, 1, 1)
    assert ask.is_text


@pytest.mark.parametrize(
    ("options", "wish"),
    [
        (None, UsageWish.NONE),
        ({}, UsageWish.NONE),
        ({"include_usage": False}, UsageWish.NONE),
        ({"include_usage": True}, UsageWish.FINAL),
        ({"continuous_usage_stats": True}, UsageWish.NONE),
        ({"include_usage": True, "continuous_usage_stats": True}, UsageWish.EVERY),
    ],
)
def test_where_a_client_wants_usage(options: dict[str, bool] | None, wish: UsageWish) -> None:
    assert _chat(stream=True, stream_options=options).usage_wish is wish


def test_the_newer_name_of_the_limit_wins() -> None:
    ask = _chat(max_tokens=3, max_completion_tokens=5)
    assert (ask.max_tokens, ask.gave_max_completion_tokens) == (5, True)
    assert _chat(max_tokens=3, max_completion_tokens=None).max_tokens == 3


@pytest.mark.parametrize("field", ENGINE_ONLY)
def test_engine_only_fields_do_not_pass(field: str) -> None:
    ask = _chat(**{field: {"any": "thing"}})
    assert field not in msgspec.json.decode(ask.body)
    assert msgspec.json.decode(ask.body)["messages"] == _MESSAGES


def test_an_engine_only_field_is_known_in_disguise_and_twice() -> None:
    body = b'{"model":"m","messages":[{"content":"a"}],"pri\\u006frity":1,"priority":null,"priority":2}'
    assert parse(body, Endpoint.CHAT).body == b'{"model":"m","messages":[{"content":"a"}]}'


def test_of_a_key_given_twice_the_last_counts_as_it_does_at_the_engine() -> None:
    body = b'{"model":"a","max_tokens":1,"messages":[{"content":"a"}],"max_tokens":9,"model":"b","n":1,"n":4}'
    ask = parse(body, Endpoint.CHAT)
    assert (ask.model, ask.max_tokens, ask.choices) == ("b", 9, 4)
    assert msgspec.json.decode(body)["max_tokens"] == 9


@pytest.mark.parametrize(
    ("parts", "is_text"),
    [
        ([{"type": "text", "text": "a"}], True),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a"}}], False),
        ([{"image_url": {"url": "http://a"}}], False),
        ([{"type": "input_audio", "input_audio": {}}], False),
    ],
)
def test_only_text_is_bounded_by_its_bytes(parts: list[dict[str, Any]], is_text: bool) -> None:
    assert _chat(messages=[{"role": "user", "content": parts}]).is_text is is_text


@pytest.mark.parametrize(
    ("prompt", "prompts"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)]
)
def test_prompts_are_counted(prompt: Any, prompts: int) -> None:
    ask = parse(msgspec.json.encode({"model": "m", "prompt": prompt}), Endpoint.COMPLETIONS)
    assert ask.prompts == prompts


def test_as_many_answers_are_counted_as_the_engine_makes() -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "a", "n": 2, "best_of": 5, "echo": True})
    ask = parse(body, Endpoint.COMPLETIONS)
    assert (ask.choices, ask.echo) == (5, True)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "8"),
        ("max_tokens", 1.5),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("n", 129),
        ("best_of", 1000),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("model", ""),
        ("model", 7),
        ("model", "x" * 201),
        ("messages", []),
        ("messages", None),
        ("messages", "hi"),
    ],
)
def test_a_wrong_parameter_is_named(member: str, value: Any) -> None:
    refusal = _refused(msgspec.json.encode({"model": "m", "messages": _MESSAGES, member: value}))
    assert refusal.reason is RejectReason.PARAMETER_INVALID
    assert refusal.facts["param"] == member


@pytest.mark.parametrize("prompt", [None, [], 7, {"a": 1}, ["a"] * 129])
def test_a_wrong_prompt_is_named(prompt: Any) -> None:
    refusal = _refused(msgspec.json.encode({"model": "m", "prompt": prompt}), Endpoint.COMPLETIONS)
    assert refusal.facts["param"] == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\x00",
        b'{"model":"m"} {}',
        b'{"model":"m","messages":[{"content":"a\x00b"}]}',
        b'{"model":"m","messages":[{"content":"\xff\xfe"}]}',
        b'{"model":"m","messages":[{"content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"content":"a"}],"x":NaN}',
        b'\xef\xbb\xbf{"model":"m","messages":[{"content":"a"}]}',
        b'{"model":"m","messages":[{"content":"a"}],"x":' + b"[" * 200_000,
        b'{"model":"m","messages":[{"content":"a"}],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","messages":[{"content":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}]}",
        b'{"messages":[{"content":"a"}]}',
    ],
)
def test_a_broken_body_is_refused(body: bytes) -> None:
    _refused(body)


@pytest.mark.parametrize("number", [b"1e400", b"-1e999", b"9" * 400])
def test_a_number_that_no_decoder_holds_is_left_to_the_engine(number: bytes) -> None:
    chat = b'{"model":"m","messages":[{"content":"a"}],"priority":1,"x":' + number + b"}"
    assert parse(chat, Endpoint.CHAT).body.endswith(b'"x":' + number + b"}")
    for prompt, prompts in ((b"[" + number + b"]", 1), (b'["a",[' + number + b"]]", 2)):
        body = b'{"model":"m","prompt":' + prompt + b"}"
        assert parse(body, Endpoint.COMPLETIONS).prompts == prompts


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    _refused(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "messages", "prompt", "n", "stream", "stream_options", "max_tokens", "best_of"]
        ),
        _json,
    ),
    st.sampled_from(Endpoint),
)
def test_no_types_do_more_than_be_refused(members: dict[str, Any], endpoint: Endpoint) -> None:
    try:
        ask = parse(msgspec.json.encode(members), endpoint)
    except Rejected as refusal:
        ask, status = None, refusal.status
    else:
        status = 400
    assert status == 400
    if ask is not None:
        assert 1 <= ask.choices <= 128
        assert ask.max_tokens is None or ask.max_tokens >= 1
