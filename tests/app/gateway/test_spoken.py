"""What counts as said: everything that was generated, and each of it once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.gateway.answer import read_answer
from app.gateway.spoken import MAX_EVENT_BYTES, MAX_SAID_BYTES, Said, Transcript
from tests.app.gateway.captures import LLAMA, VLLM, body


def _event(*choices: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": choices}) + b"\n\n"


def _said(*events: bytes) -> tuple[Said, ...]:
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript.said()


def _delta(**delta: Any) -> bytes:
    return _event({"index": 0, "delta": delta})


def _calls(*functions: dict[str, str]) -> dict[str, Any]:
    return {"tool_calls": [{"index": at, "function": one} for at, one in enumerate(functions)]}


def test_the_text_of_each_choice_is_put_together() -> None:
    events = body(VLLM, "chat_stream").split(b"\n\n")
    assert _said(*events) == (Said("The capital of France is Paris."),)
    assert len(_said(*body(VLLM, "chat_n2_stream_usage").split(b"\n\n"))) == 2


def test_what_a_model_says_by_calling_tools_counts() -> None:
    events = [_delta(**_calls({"name": "f", "arguments": ""})), _delta(**_calls({"arguments": "{1}"}))]
    assert _said(*events) == (Said("f{1}"),)
    assert _said(_delta(function_call={"name": "g", "arguments": "{}"})) == (Said("g{}"),)


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"refusal": "hm"}])
def test_reasoning_and_refusals_count(delta: dict[str, str]) -> None:
    assert _said(_delta(**delta), _delta(content="!")) == (Said("hm!"),)


def test_reasoning_under_both_its_names_counts_once() -> None:
    both = _delta(reasoning="hm", reasoning_content="hm")
    assert _said(both, both) == (Said("hmhm"),)
    assert _said(_delta(reasoning="a", reasoning_content="b")) == (Said("ab"),)


def test_logprobs_tell_of_the_same_tokens_and_not_of_more() -> None:
    events = body(VLLM, "chat_logprobs_stream").split(b"\n\n")
    assert _said(*events) == (Said("The capital", tokens=2),)
    assert _said(*body(LLAMA, "chat_logprobs_stream").split(b"\n\n")) == (Said("The capital", tokens=2),)
    completion = {"index": 0, "text": "a b", "logprobs": {"tokens": ["a", " b"], "token_logprobs": [0, 0]}}
    assert _said(_event(completion)) == (Said("a b", tokens=2),)


def test_a_whole_answer_says_the_same() -> None:
    message = {"content": None, **_calls({"name": "f", "arguments": "{}"}), "function_call": {"name": "g"}}
    answer = read_answer(msgspec.json.encode({"choices": [{"message": message}, {"text": "x"}]}))
    assert answer is not None
    assert answer.said() == (Said("gf{}"), Said("x"))


def test_what_is_no_event_says_nothing() -> None:
    assert _said(b": ping", b"data: [DONE]", b"data: {", b"data: null", b'data: {"choices":[7]}') == ()


def test_a_long_stream_is_kept_as_its_text() -> None:
    transcript = Transcript()
    event = _delta(content="one two ")
    times = 20 * MAX_EVENT_BYTES // len(event)
    for _ in range(times):
        transcript.add(event)
    assert transcript.said() == (Said("one two " * times),)
    assert not transcript.too_long


def test_a_stream_that_says_too_much_is_not_kept() -> None:
    transcript = Transcript()
    for _ in range(3):
        transcript.add(_delta(content="a" * (MAX_SAID_BYTES // 2)))
    assert transcript.too_long
    assert transcript.said() == ()
