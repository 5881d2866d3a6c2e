"""Captured streams of real engines, cut anywhere: the same bytes relayed, the same usage read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.answer import rename_members
from app.gateway.dialect import VLLM as VLLM_DIALECT
from app.gateway.dialect import Dialect, dialect_of
from app.gateway.event_stream import MAX_EVENT_BYTES, EventStream
from app.gateway.model import UsageWish
from app.gateway.spoken import Said
from billing.metering.convert import Report
from tests.app.gateway.captures import LLAMA, VLLM, body

_LLAMA = dialect_of("llama-server")
_STREAMS = [
    (VLLM, "chat_stream_usage_continuous", VLLM_DIALECT, 1, Report(42, 8, 0, 0)),
    (VLLM, "chat_stream_usage", VLLM_DIALECT, 1, Report(42, 8, 0, 0)),
    (VLLM, "chat_n2_stream_usage", VLLM_DIALECT, 2, None),
    (VLLM, "chat_logprobs_stream", VLLM_DIALECT, 1, None),
    (VLLM, "chat_return_token_ids_stream", VLLM_DIALECT, 1, Report(42, 3, 0, 0)),
    (VLLM, "chat_longprefix_3_cached_stream", VLLM_DIALECT, 1, Report(1067, 4, 1024, 0)),
    (VLLM, "completion_stream_usage", VLLM_DIALECT, 1, None),
    (LLAMA, "chat_stream_usage", _LLAMA, 1, Report(42, 8, 41)),
    (LLAMA, "completion_stream_usage", _LLAMA, 1, Report(5, 6, 4)),
    (LLAMA, "chat_tools_named_stream", _LLAMA, 1, Report(42, 8, 41)),
    ("llama-server", "chat_stream_timings.sse", _LLAMA, 1, None),
    ("llama-server", "chat_stream_timings_n2.sse", _LLAMA, 2, None),
    ("llama-server", "completion_stream_timings.sse", _LLAMA, 1, None),
]
_IDS = [f"{engine}/{name}" for engine, name, *_ in _STREAMS]


def _stream(
    dialect: Dialect, *, wish: UsageWish = UsageWish.NONE, choices: int = 1, **more: Any
) -> EventStream:
    more.setdefault("choices_per_prompt", choices)
    return EventStream(wish=wish, choices=choices, dialect=dialect, **more)


def _run(stream: EventStream, pieces: list[bytes]) -> bytes:
    leaving = b"".join(map(stream.feed, pieces))
    stream.close()
    return leaving + b"".join(stream.held)


def _chunks(data: bytes) -> list[dict[str, Any]]:
    events = [event.strip() for event in data.replace(b"\r\n", b"\n").split(b"\n\n")]
    bodies = [event.removeprefix(b"data:").strip() for event in events if event.startswith(b"data:")]
    return [msgspec.json.decode(one) for one in bodies if one not in (b"[DONE]", b"null")]


def _text(data: bytes) -> list[tuple[int, str]]:
    said = []
    for chunk in _chunks(data):
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            calls = [call["function"].get("arguments", "") for call in delta.get("tool_calls") or []]
            said.append(
                (choice["index"], (choice.get("text") or delta.get("content") or "") + "".join(calls))
            )
    return [one for one in said if one[1]]


@pytest.mark.parametrize("wish", UsageWish)
@pytest.mark.parametrize(("engine", "name", "dialect", "choices", "report"), _STREAMS, ids=_IDS)
def test_the_usage_that_an_engine_reported_is_read(
    engine: str, name: str, dialect: Dialect, choices: int, report: Report | None, wish: UsageWish
) -> None:
    stream = _stream(dialect, wish=wish, choices=choices)
    _run(stream, [body(engine, name)])
    assert stream.done
    assert stream.finished
    if report is not None:
        assert stream.report() == report


def test_a_first_read_of_a_single_byte_is_no_event() -> None:
    data = body(VLLM, "chat_stream_usage_continuous")
    stream = _stream(VLLM_DIALECT)
    assert stream.feed(data[:1]) == b""
    assert stream.feed(data[1:]) == _stream(VLLM_DIALECT).feed(data)


@given(st.data())
def test_any_split_into_many_reads_gives_the_same_bytes_and_usage(data: st.DataObject) -> None:
    engine, name, dialect, choices, _ = data.draw(st.sampled_from(_STREAMS))
    wish = data.draw(st.sampled_from(UsageWish))
    bytes_ = body(engine, name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(bytes_)), max_size=40)))
    pieces = [bytes_[a:b] for a, b in zip([0, *cuts], [*cuts, len(bytes_)], strict=True)]
    whole, stream = (_stream(dialect, wish=wish, choices=choices) for _ in range(2))
    assert _run(stream, [piece for piece in pieces if piece]) == _run(whole, [bytes_])
    assert stream.report() == whole.report()
    assert stream.finish_reason == whole.finish_reason


@pytest.mark.parametrize(("engine", "name", "dialect", "choices", "report"), _STREAMS, ids=_IDS)
def test_a_client_that_did_not_ask_sees_no_usage_but_all_the_text(
    engine: str, name: str, dialect: Dialect, choices: int, report: Report | None
) -> None:
    data = body(engine, name)
    relayed = _run(_stream(dialect, choices=choices), [data])
    assert _text(relayed) == _text(data)
    assert relayed.rstrip().endswith(b"data: [DONE]")
    for chunk in _chunks(relayed):
        assert "usage" not in chunk
        assert "timings" not in chunk
        assert chunk["choices"]


@pytest.mark.parametrize(("engine", "name", "dialect", "choices", "report"), _STREAMS, ids=_IDS)
def test_a_client_that_asked_sees_usage_once_at_the_end_with_no_choices(
    engine: str, name: str, dialect: Dialect, choices: int, report: Report | None
) -> None:
    data = body(engine, name)
    stream = _stream(dialect, wish=UsageWish.FINAL, choices=choices)
    chunks = _chunks(_run(stream, [data]))
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    found = stream.report()
    if found is None:
        assert not with_usage
        return
    assert with_usage == [chunks[-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == found.prompt
    assert chunks[-1]["usage"]["completion_tokens"] == found.completion


def test_continuous_usage_is_left_to_a_client_that_asked_for_it() -> None:
    data = body(VLLM, "chat_stream_usage_continuous")
    relayed = _run(_stream(VLLM_DIALECT, wish=UsageWish.EVERY), [data])
    assert relayed == data


def test_choices_of_a_llama_server_are_summed() -> None:
    stream = _stream(_LLAMA, wish=UsageWish.FINAL, choices=2)
    chunks = _chunks(_run(stream, [body("llama-server", "chat_stream_timings_n2.sse")]))
    assert stream.report() == Report(prompt=32, completion=8, cached=31)
    assert chunks[-1]["usage"]["total_tokens"] == 40


def test_prompts_of_a_llama_server_are_summed() -> None:
    stream = _stream(_LLAMA, choices=2, choices_per_prompt=1)
    _run(stream, [body("llama-server", "completion_stream_timings_batch.sse")])
    assert stream.report() == Report(prompt=2, completion=6, cached=0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_cut_stream_of_several_choices_knows_the_usage_of_all(engine: str) -> None:
    stream = _stream(dialect_of(engine), choices=3)
    for tokens in (1, 2, 3):
        for choice in (0, 1, 2):
            usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
            chunk = {"choices": [{"index": choice, "delta": {"content": "a"}}], "usage": usage}
            stream.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    assert stream.report() == Report(prompt=9, completion=9)
    stream.feed(b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":10}}\n\n')
    assert stream.report() == Report(prompt=9, completion=10)


def test_a_cut_stream_knows_its_usage_so_far() -> None:
    data = body(VLLM, "chat_stream_usage_continuous")
    stream = _stream(VLLM_DIALECT)
    stream.feed(data[: data.index(b" France") + 250])
    assert stream.report() == Report(prompt=42, completion=4)
    assert not stream.finished


def test_what_belongs_to_the_end_is_held_back() -> None:
    data = body(VLLM, "chat_stream_usage_continuous")
    stream = _stream(VLLM_DIALECT, wish=UsageWish.FINAL)
    leaving = stream.feed(data)
    assert b"[DONE]" not in leaving
    assert b'"finish_reason":"stop"' not in leaving
    assert b"[DONE]" in stream.held[-1]


def test_an_error_frame_is_a_failure_even_if_done_follows() -> None:
    data = body("vllm-0.32.0-cpu-faults", "killcore_stream")
    stream = _stream(VLLM_DIALECT)
    relayed = _run(stream, [data])
    assert stream.failure is not None
    assert not stream.done
    assert b"[DONE]" not in relayed
    assert b"EngineCore" not in relayed


def test_nothing_after_done_is_relayed() -> None:
    stream = _stream(VLLM_DIALECT)
    assert _run(stream, [b'data: [DONE]\n\ndata: {"choices":[]}\n\n']) == b"data: [DONE]\n\n"


def test_text_that_speaks_of_usage_done_and_errors_is_only_text() -> None:
    said = '"usage":{"prompt_tokens":9} [DONE] {"error":1} "finish_reason":"stop" "choices":[] '
    chunk = {"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": None}]}
    event = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
    stream = _stream(VLLM_DIALECT)
    assert stream.feed(event) == event
    assert stream.report() is None
    assert not stream.done
    assert not stream.finished
    assert stream.failure is None


@given(st.text(), st.text(), st.integers(0, 99))
def test_no_text_changes_what_is_read(content: str, name: str, completion: int) -> None:
    chunk = {
        "model": name,
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}],
        "usage": {"prompt_tokens": 5, "completion_tokens": completion},
    }
    stream = _stream(VLLM_DIALECT)
    relayed = stream.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    del chunk["usage"]
    assert _chunks(relayed) == [chunk]
    assert stream.report() == Report(prompt=5, completion=completion)


def test_carriage_returns_and_comments_pass() -> None:
    stream = _stream(VLLM_DIALECT)
    data = b': ping\r\n\r\ndata: {"choices":[{"index":0}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert _run(stream, [data]) == data
    assert stream.done


_FRAMES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: b"data: " + data + b"\n\n",
    "no space": lambda data: b"data:" + data + b"\n\n",
    "two spaces": lambda data: b"data:  " + data + b"\n\n",
    "carriage returns": lambda data: b"data: " + data + b"\r\n\r\n",
    "more blank lines": lambda data: b"\ndata: " + data + b"\n\n\n\n",
    "a comment before it": lambda data: b": ping\ndata: " + data + b"\n\n",
    "a comment of other line ends": lambda data: b": ping\r\n\r\ndata: " + data + b"\n\n",
    "a name": lambda data: b"event: message\ndata: " + data + b"\n\n",
    "a name behind": lambda data: b"data: " + data + b"\nevent: message\n\n",
    "an id": lambda data: b"id: 7\nretry: 10\ndata: " + data + b"\n\n",
    "several lines": lambda data: b"data: " + data.replace(b",", b",\ndata: ") + b"\n\n",
    "several lines with carriage returns": lambda data: (
        b"data: " + data.replace(b",", b",\r\ndata: ") + b"\r\n\r\n"
    ),
}
_SAID = b'{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
_LAST = b'{"id":"c","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}'
_USAGE = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}'


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n"], ids=["", "mark", "blank"])
@pytest.mark.parametrize("frame", _FRAMES.values(), ids=_FRAMES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_event_says_the_same_in_whatever_frame(
    frame: Callable[[bytes], bytes], start: bytes, size: int
) -> None:
    data = start + b"".join(map(frame, (_SAID, _LAST, _USAGE, b"[DONE]")))
    stream = _stream(VLLM_DIALECT, wish=UsageWish.FINAL)
    relayed = _run(stream, [data[at : at + size] for at in range(0, len(data), size)])
    assert stream.done
    assert stream.finished
    assert stream.report() == Report(prompt=5, completion=2)
    assert relayed.count(b"[DONE]") == 1
    assert b"[DONE]" in stream.held[-1]


@pytest.mark.parametrize(
    "error",
    [
        b'{"error":{"message":"boom","code":500}}',
        b'{ "error" : "boom" }',
        b'{"id":"c","error":{"message":"boom","code":500}}',
        b'{"id":"c","choices":[],"error":{"message":"boom"}}',
        b'{"choices":[{"index":0,"delta":{"content":""}}],"error":"boom"}',
        b'{"object":"error","message":"boom"}',
    ],
)
@pytest.mark.parametrize("frame", _FRAMES.values(), ids=_FRAMES)
def test_an_error_is_one_in_whatever_frame(frame: Callable[[bytes], bytes], error: bytes) -> None:
    stream = _stream(VLLM_DIALECT)
    relayed = _run(stream, [b"".join(map(frame, (_SAID, error, _LAST, _USAGE, b"[DONE]")))])
    assert stream.failure is not None
    assert not stream.done
    assert b"boom" not in relayed


def test_an_event_that_is_named_an_error_is_one() -> None:
    stream = _stream(VLLM_DIALECT)
    relayed = _run(stream, [b'event: error\ndata: {"message":"boom"}\n\ndata: [DONE]\n\n'])
    assert stream.failure is not None
    assert relayed == b""


def test_no_error_is_none() -> None:
    stream = _stream(VLLM_DIALECT)
    event = b'data: {"id":"c","choices":[{"index":0,"delta":{"tool":{"error":"x"}}}],"error":null}\n\n'
    assert stream.feed(event) == event
    assert stream.failure is None


def test_the_name_asked_for_is_shown() -> None:
    rename = rename_members("smollm2-135m-instruct", "nice/name")
    stream = _stream(VLLM_DIALECT, wish=UsageWish.FINAL, rename=rename)
    relayed = _run(stream, [body(VLLM, "chat_stream_usage_continuous")])
    assert {chunk["model"] for chunk in _chunks(relayed)} == {"nice/name"}


def test_an_event_without_end_is_a_failure_and_not_a_leak() -> None:
    stream = _stream(VLLM_DIALECT)
    piece = b"x" * (MAX_EVENT_BYTES // 4)
    for _ in range(5):
        stream.feed(piece)
    assert stream.failure is not None


def test_what_is_said_is_kept_only_while_no_usage_is_known() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    stream = _stream(VLLM_DIALECT)
    stream.feed(event * 3)
    transcript = stream.transcript()
    assert transcript is not None
    assert transcript.said() == (Said("aaa"),)
    stream.feed(b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":1}}\n\n')
    assert stream.transcript() is transcript
    stream.feed(b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":1,"completion_tokens":4}}\n\n')
    assert stream.transcript() is None


def test_usage_said_twice_counts_once() -> None:
    count: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 3}
    last = {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": count}
    again = {"choices": [], "usage": {**count, "prompt_tokens_details": {"cached_tokens": 4}}}
    once, twice = (b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in (last, again))
    stream = _stream(VLLM_DIALECT)
    _run(stream, [once, twice, b"data: [DONE]\n\n"])
    assert stream.report() == Report(prompt=7, completion=3, cached=4)
