"""The forms in which engines report usage, through a whole relay: what is recorded, billed and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.dialect import DIALECTS
from billing.journal.model import Settled
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from tests.app.gateway.stage import BACKEND, JSON, SSE, Stage, stage

_PLAIN = replace(BACKEND, engine="openai")
_DONE = b"data: [DONE]\n\n"
_ABSENT = object()


def _usage(prompt: Any = 42, completion: Any = 8, *, cached: Any = 0, **more: Any) -> dict[str, Any]:
    total = prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else 0
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return {
        "prompt_tokens": prompt,
        "total_tokens": total,
        "completion_tokens": completion,
        **details,
        **more,
    }


def _event(usage: Any = _ABSENT, *, text: str | None = "a", finish: str | None = None, at: int = 0) -> bytes:
    choices = [] if text is None else [{"index": at, "delta": {"content": text}, "finish_reason": finish}]
    chunk: dict[str, Any] = {"id": "c", "model": "m", "choices": choices}
    if usage is not _ABSENT:
        chunk["usage"] = usage
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _streamed(*events: bytes, **asked: Any) -> tuple[Stage, Settled]:
    backend = asked.pop("backend", _PLAIN)
    on = stage(backend=backend, **asked)
    on.relay.head(200, SSE, backend=backend)
    on.relay.piece(b"".join(events) + _DONE)
    (settled,) = on.journal.settled
    return on, settled


def _whole(usage: Any, **asked: Any) -> tuple[Stage, Settled]:
    on = stage(streamed=False, backend=_PLAIN, **asked)
    on.relay.head(200, JSON, backend=_PLAIN)
    choices = [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]
    answer = {"id": "c", "choices": choices, **({} if usage is _ABSENT else {"usage": usage})}
    on.relay.piece(msgspec.json.encode(answer))
    on.relay.end()
    (settled,) = on.journal.settled
    return on, settled


async def _shown(on: Stage) -> list[dict[str, Any]]:
    """The chunks that the client got."""
    on.journal.commit()
    await on.pump()
    events = [event.removeprefix(b"data: ") for event in on.body.split(b"\n\n")]
    return [msgspec.json.decode(event) for event in events if event.startswith(b"{")]


class Form(NamedTuple):
    """What an engine reports at its end, and what is recorded of it."""

    usage: Any
    source: UsageSource = UsageSource.ENGINE
    recorded: Usage = Usage(input=42, output=8)
    flags: tuple[str, ...] = ()
    billed: Usage | None = None


_UNKNOWN = {"source": UsageSource.UNKNOWN, "recorded": NOTHING}
FORMS = {
    "plain": Form(_usage()),
    "cached": Form(_usage(cached=40), recorded=Usage(2, 40, 0, 8)),
    "cached not told": Form(_usage(cached=None), flags=("cached_unknown",)),
    "all cached": Form(_usage(cached=42), recorded=Usage(0, 42, 0, 8)),
    "cached above the prompt": Form(
        _usage(cached=43), recorded=Usage(0, 42, 0, 8), flags=("cached_above_input",)
    ),
    "reasoning": Form(
        _usage(completion_tokens_details={"reasoning_tokens": 5}), recorded=Usage(42, 0, 0, 8, 5)
    ),
    "reasoning above the output": Form(
        _usage(completion_tokens_details={"reasoning_tokens": 9}),
        recorded=Usage(42, 0, 0, 8, 8),
        flags=("reasoning_above_output",),
    ),
    "zero": Form(_usage(0, 0), recorded=NOTHING),
    "an empty completion": Form(_usage(42, 0), recorded=Usage(input=42)),
    "missing": Form(_ABSENT, **_UNKNOWN),
    "null": Form(None, **_UNKNOWN),
    "empty": Form({}, **_UNKNOWN),
    "null fields": Form(_usage(None, None), **_UNKNOWN),
    "floats": Form(_usage(42.0, 8.0), flags=("usage_malformed",)),
    "texts": Form(_usage("42", "8"), flags=("usage_malformed",)),
    "a fraction": Form(_usage(42, 8.5), flags=("usage_malformed",), **_UNKNOWN),
    "negative": Form(_usage(42, -8), flags=("usage_malformed",), **_UNKNOWN),
    "a list": Form([42, 8], **_UNKNOWN),
    "absurdly much output": Form(
        _usage(42, 1_165_619),
        recorded=Usage(input=42, output=1_165_619),
        flags=("output_above_bound",),
        billed=Usage(input=42, output=50),
    ),
    "absurdly much input": Form(
        _usage(1_165_619, 8),
        recorded=Usage(input=1_165_619, output=8),
        flags=("input_above_bound",),
        billed=Usage(input=100, output=8),
    ),
    "more than any number of tokens": Form(_usage(42, 10**30), flags=("usage_malformed",), **_UNKNOWN),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("way", ["whole", "last chunk", "finishing chunk"])
async def test_every_form_of_usage_is_recorded_and_billed_as_it_must(form: Form, way: str) -> None:
    if way == "whole":
        on, settled = _whole(form.usage)
    elif way == "last chunk":
        on, settled = _streamed(_event(), _event(finish="stop"), _event(form.usage, text=None))
    else:
        on, settled = _streamed(_event(), _event(form.usage, finish="stop"))
    assert settled.outcome is Outcome.COMPLETED
    assert (settled.usage_source, settled.usage) == (form.source, form.recorded)
    assert settled.flags == form.flags
    assert settled.billed == (form.recorded if form.billed is None else form.billed)
    assert (settled.unknown_bound is not None) is (form.source is UsageSource.UNKNOWN)
    assert settled.cost_picos <= 200, "no request costs more than was held"
    assert on.free == 1000 - settled.cost_picos
    await _shown(on)
    assert on.is_whole


def test_usage_said_twice_or_again_and_again_counts_once() -> None:
    growing = [_event(_usage(42, count, cached=None)) for count in range(8)]
    last = [_event(_usage(42, 8, cached=None), finish="stop"), _event(_usage(42, 8), text=None)]
    for events in ([*growing, *last], [*growing, *last, last[1]], [growing[3], growing[3], *last]):
        assert _streamed(*events)[1].usage == Usage(input=42, output=8)


def test_nulls_between_do_not_undo_what_was_told() -> None:
    nulls = [_event(None), _event(_usage(None, None)), _event(_usage(-1, -1)), _event({})]
    _, settled = _streamed(_event(_usage(42, 8)), *nulls, _event(finish="stop"))
    assert settled.usage == Usage(input=42, output=8)
    assert settled.flags == ("usage_malformed",)


def test_a_count_that_falls_is_believed_as_the_last_word() -> None:
    _, settled = _streamed(_event(_usage(42, 9)), _event(_usage(42, 8), finish="stop"))
    assert settled.usage.output == 8


async def test_a_client_that_did_not_ask_is_not_shown_even_null() -> None:
    on, _ = _streamed(_event(None), _event(_usage(), finish="stop"), _event(_usage(), text=None))
    assert all("usage" not in chunk for chunk in await _shown(on))


async def test_usage_on_the_finishing_chunk_is_shown_as_openai_does() -> None:
    asked = {"stream_options": {"include_usage": True}}
    on, _ = _streamed(_event(), _event(_usage(), finish="stop"), **asked)
    chunks = await _shown(on)
    assert [chunk.get("usage") for chunk in chunks[:-1]] == [None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 50


@pytest.mark.parametrize("engine", [name for name, dialect in DIALECTS.items() if dialect.per_choice])
async def test_several_choices_sum_their_outputs_and_count_their_prompt_once(engine: str) -> None:
    backend = replace(BACKEND, engine=engine)
    if DIALECTS[engine].timings:
        timed = [
            b'data: {"id":"c","choices":[{"index":%d,"delta":{"content":"a"},"finish_reason":"stop"}],'
            b'"timings":{"cache_n":2,"prompt_n":40,"predicted_n":%d}}\n\n' % (at, count)
            for at, count in ((0, 3), (1, 4))
        ]
    else:
        timed = [_event(_usage(42, count), finish="stop", at=at) for at, count in ((0, 3), (1, 4))]
    asked = {"stream_options": {"include_usage": True}, "n": 2}
    on, settled = _streamed(*timed, backend=backend, **asked)
    assert settled.usage.output == 7
    assert settled.usage.input + settled.usage.input_cached == 42
    chunks = await _shown(on)
    assert chunks[-1]["usage"]["completion_tokens"] == 7
    assert chunks[-1]["usage"]["total_tokens"] == 49


def test_a_choice_that_says_its_end_twice_has_ended_once() -> None:
    """Else a client that leaves then would be charged as if all choices were whole."""
    on = stage(backend=_PLAIN, n=2)
    on.relay.head(200, SSE, backend=_PLAIN)
    on.relay.piece(_event(finish="stop") + _event(_usage(), finish="stop") + _event(at=1))
    on.relay.gone()
    assert on.journal.settled[0].outcome is Outcome.CLIENT_CANCELLED


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(_TEXTS, min_size=1, max_size=5), st.data())
async def test_characters_of_several_bytes_may_be_cut_anywhere(texts: list[str], data: st.DataObject) -> None:
    events = b"".join(_event(_usage(42, at + 1), text=text) for at, text in enumerate(texts))
    whole = events + _event(_usage(42, len(texts)), finish="stop") + _DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    on = stage(backend=_PLAIN)
    on.relay.head(200, SSE, backend=_PLAIN)
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        if start < end:
            on.relay.piece(whole[start:end])
    said = [chunk["choices"][0]["delta"]["content"] for chunk in await _shown(on)]
    assert said == [*texts, "a"]
    assert on.journal.settled[0].usage == Usage(input=42, output=len(texts))
