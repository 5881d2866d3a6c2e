"""Every way in which an admitted request ends, and the one record that each of them leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from app.core.errors import (
    ConnectFailed,
    EngineOverloaded,
    FirstTokenTimeout,
    Rejected,
    RejectReason,
    StreamBroken,
)
from app.gateway.progress import shutting_down
from billing.metering.model import NOTHING, Outcome, Usage, UsageSource
from scheduler.model import AttemptOutcome
from tests.app.gateway.captures import VLLM, body
from tests.app.gateway.stage import BACKEND, JSON, SSE, Stage, stage

_STREAM = body(VLLM, "chat_stream_usage_continuous")
_FIRST = _STREAM[: _STREAM.index(b"\n\n") + 2]
_PART = _STREAM[: _STREAM.index(b" France")]
_FINISHED = _STREAM[: _STREAM.index(b'"choices":[],')]
_BEFORE_DONE = _STREAM[: _STREAM.index(b"data: [DONE]")]
_BOUND = Usage(input=100, output=50)
_PARTIAL = Usage(input=42, output=3)
_WHOLE = Usage(input=42, output=8)
_COMPLETED, _CANCELLED = Outcome.COMPLETED, Outcome.CLIENT_CANCELLED
_FAILED, _REFUSED, _TIMED_OUT = Outcome.ENGINE_FAILED, Outcome.REFUSED_BY_ENGINE, Outcome.TIMED_OUT
_ENGINE, _CUT, _UNKNOWN = UsageSource.ENGINE, UsageSource.ENGINE_PARTIAL, UsageSource.UNKNOWN

Ends = Callable[[Stage], None]


class Record(NamedTuple):
    """What a settlement must say; `billed` is the usage where the outcome is billed, else nothing."""

    outcome: Outcome
    source: UsageSource
    usage: Usage = NOTHING
    flags: tuple[str, ...] = ()
    error_code: str | None = None
    status: int = 200


def _after(data: bytes, *then: Ends) -> Ends:
    """The stream begins, says `data`, and what follows happens."""

    def ends(on: Stage) -> None:
        on.relay.head(200, SSE, backend=BACKEND)
        if data:
            on.relay.piece(data)
        for happens in then:
            happens(on)

    return ends


def _answers(status: int, data: bytes, *, content_type: list[tuple[bytes, bytes]] = JSON) -> Ends:
    def ends(on: Stage) -> None:
        on.relay.head(status, content_type, backend=BACKEND)
        if data:
            on.relay.piece(data)
        on.relay.end()

    return ends


def _gone(on: Stage) -> None:
    on.relay.gone()


def _end(on: Stage) -> None:
    on.relay.end()


def _stop(on: Stage) -> None:
    on.relay.abort(shutting_down())


def _broke(reason: str) -> Ends:
    return lambda on: on.relay.error(StreamBroken("The engine's answer ended.", reason=reason))


def _unreached(on: Stage) -> None:
    on.dispatch.attempts[0].outcome = AttemptOutcome.UNREACHABLE
    on.relay.error(ConnectFailed("The engine could not be reached."))


def _never_tried(on: Stage) -> None:
    on.dispatch.attempts.clear()
    on.relay.gone()


def _no_backend(on: Stage) -> None:
    on.dispatch.attempts.clear()
    on.relay.error(Rejected(RejectReason.NO_HEALTHY_BACKEND, "None.", status=503))


def _no_first_token(on: Stage) -> None:
    on.relay.error(FirstTokenTimeout("The engine did not start to answer in time."))


def _all_overloaded(on: Stage) -> None:
    on.relay.error(EngineOverloaded("Too busy.", engine_status=503))


_ABORTED = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}\n\n'
_FRAME = b'data: {"error":{"message":"EngineCore died","type":"x","param":null,"code":500}}\n\n'
_BROKEN, _DOWN, _LATE = "engine_stream_broken", "shutting_down", "engine_first_token_timeout"
_UNTOLD = ("cached_unknown",)

STREAMS: Mapping[str, tuple[Ends, Record]] = {
    # The client leaves.
    "client gone before any engine was tried": (_never_tried, Record(_CANCELLED, _ENGINE, status=499)),
    "client gone before the head": (_gone, Record(_CANCELLED, _UNKNOWN, status=499)),
    "client gone before the first byte": (_after(b"", _gone), Record(_CANCELLED, _UNKNOWN, status=499)),
    "client gone after the first event": (
        _after(_FIRST, _gone),
        Record(_CANCELLED, _CUT, Usage(input=42), _UNTOLD, status=499),
    ),
    "client gone in the middle": (
        _after(_PART, _gone),
        Record(_CANCELLED, _CUT, _PARTIAL, _UNTOLD, status=499),
    ),
    "client gone after the finish, the engine ends": (
        _after(_FINISHED, _gone, _end),
        Record(_COMPLETED, _ENGINE, _WHOLE, _UNTOLD),
    ),
    "client gone after the finish, the engine breaks": (
        _after(_FINISHED, _gone, _broke("reset")),
        Record(_COMPLETED, _ENGINE, _WHOLE, _UNTOLD),
    ),
    "client gone after the finish, the engine tells the rest": (
        _after(_FINISHED, _gone, lambda on: on.relay.piece(_STREAM[len(_FINISHED) :])),
        Record(_COMPLETED, _ENGINE, _WHOLE),
    ),
    "client gone after the last chunk, before [DONE]": (
        _after(_BEFORE_DONE, _gone, _end),
        Record(_COMPLETED, _ENGINE, _WHOLE),
    ),
    "client gone after [DONE]": (_after(_STREAM, _gone), Record(_COMPLETED, _ENGINE, _WHOLE)),
    # It comes to its end.
    "to its end": (_after(_STREAM, _end), Record(_COMPLETED, _ENGINE, _WHOLE)),
    "to its end without [DONE]": (_after(_BEFORE_DONE, _end), Record(_COMPLETED, _ENGINE, _WHOLE)),
    # The engine fails.
    "no backend": (
        _no_backend,
        Record(_FAILED, _ENGINE, error_code="no_healthy_backend", status=503),
    ),
    "engine unreachable": (
        _unreached,
        Record(_FAILED, _ENGINE, error_code="engine_unreachable", status=503),
    ),
    "all engines overloaded": (
        _all_overloaded,
        Record(_FAILED, _ENGINE, error_code="engine_overloaded", status=503),
    ),
    "engine dies before the head": (
        _broke("reset"),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502),
    ),
    "engine dies before the first byte": (
        _after(b"", _broke("reset")),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN),
    ),
    "engine dies in the middle": (
        _after(_PART, _broke("truncated chunk")),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    "engine ends in the middle": (
        _after(_PART, _end),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    "engine dies when all is said": (
        _after(_FINISHED, _broke("reset")),
        Record(_COMPLETED, _ENGINE, _WHOLE, _UNTOLD),
    ),
    "an error frame, then [DONE]": (
        _after(_PART[: _PART.rindex(b"data: ")] + _FRAME + b"data: [DONE]\n\n", _end),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    "an error frame at once": (
        _after(_FRAME + b"data: [DONE]\n\n", _end),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN),
    ),
    "an engine that says it aborted": (
        _after(_PART[: _PART.rindex(b"data: ")] + _ABORTED + b"data: [DONE]\n\n", _end),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    # The engine answers otherwise.
    "400": (_answers(400, b"{}"), Record(_REFUSED, _ENGINE, error_code="engine_refused", status=400)),
    "429": (_answers(429, b"{}"), Record(_REFUSED, _ENGINE, error_code="engine_refused", status=429)),
    "404": (_answers(404, b"{}"), Record(_FAILED, _ENGINE, error_code="engine_error", status=502)),
    "503": (_answers(503, b""), Record(_FAILED, _ENGINE, error_code="engine_overloaded", status=503)),
    "500": (_answers(500, b"oops"), Record(_FAILED, _UNKNOWN, error_code="engine_error", status=502)),
    "302": (_answers(302, b""), Record(_FAILED, _ENGINE, error_code="engine_error", status=502)),
    "204": (_answers(204, b""), Record(_FAILED, _UNKNOWN, error_code="engine_error", status=502)),
    "200 that is a page": (
        _answers(200, b"<html>", content_type=[(b"content-type", b"text/html")]),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502),
    ),
    "200 that is no event": (
        _answers(200, b"<html>\n\n<body>", content_type=SSE),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN),
    ),
    "200 with nothing": (
        _answers(200, b"", content_type=SSE),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN),
    ),
    # Time is up.
    "no first token in time": (
        _no_first_token,
        Record(_TIMED_OUT, _UNKNOWN, error_code=_LATE, status=504),
    ),
    "silent for too long": (
        _after(_PART, _broke("idle deadline")),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    "silent when all is said": (
        _after(_FINISHED, _broke("idle deadline")),
        Record(_COMPLETED, _ENGINE, _WHOLE, _UNTOLD),
    ),
    "too long in all": (
        _after(_PART, _broke("total deadline")),
        Record(_TIMED_OUT, _CUT, _PARTIAL, _UNTOLD, _BROKEN),
    ),
    # Our own process stops.
    "shutdown before the head": (_stop, Record(_FAILED, _UNKNOWN, error_code=_DOWN, status=503)),
    "shutdown in the middle": (
        _after(_PART, _stop),
        Record(_FAILED, _CUT, _PARTIAL, _UNTOLD, _DOWN),
    ),
    "shutdown when all is said": (
        _after(_FINISHED, _stop),
        Record(_COMPLETED, _ENGINE, _WHOLE, _UNTOLD),
    ),
}

_ANSWER = body(VLLM, "chat")
WHOLES: Mapping[str, tuple[Ends, Record]] = {
    "to its end": (_answers(200, _ANSWER), Record(_COMPLETED, _ENGINE, _WHOLE)),
    "client gone while the engine works": (_gone, Record(_CANCELLED, _UNKNOWN, status=499)),
    "client gone while the answer comes": (
        lambda on: (on.relay.head(200, JSON, backend=BACKEND), on.relay.piece(_ANSWER[:99]), _gone(on))[2],
        Record(_CANCELLED, _UNKNOWN, status=499),
    ),
    "engine dies": (_broke("reset"), Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502)),
    "cut in its middle": (
        _answers(200, _ANSWER[:99]),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502),
    ),
    "too long in all": (_no_first_token, Record(_TIMED_OUT, _UNKNOWN, error_code=_LATE, status=504)),
    "JSON that is no answer": (
        _answers(200, b'{"detail":"Not Found"}'),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502),
    ),
    "an error with status 200": (
        _answers(200, b'{"choices":[],"error":{"message":"out of memory"}}'),
        Record(_FAILED, _UNKNOWN, error_code=_BROKEN, status=502),
    ),
    "an engine that says it aborted": (
        _answers(200, _ANSWER.replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"')),
        Record(_FAILED, _CUT, _WHOLE, error_code=_BROKEN, status=502),
    ),
    "shutdown": (_stop, Record(_FAILED, _UNKNOWN, error_code=_DOWN, status=503)),
}
_ALL = [(True, name, *case) for name, case in STREAMS.items()]
_ALL += [(False, name, *case) for name, case in WHOLES.items()]


@pytest.mark.parametrize(
    ("streamed", "ends", "expected"),
    [(streamed, ends, expected) for streamed, _, ends, expected in _ALL],
    ids=[f"{'stream' if streamed else 'whole'}: {name}" for streamed, name, *_ in _ALL],
)
async def test_a_request_ends_in_one_record(streamed: bool, ends: Ends, expected: Record) -> None:
    on = stage(streamed=streamed)
    ends(on)
    on.journal.commit()
    await on.pump()
    (settled,) = on.journal.settled
    told = Record(
        settled.outcome,
        settled.usage_source,
        settled.usage,
        settled.flags,
        settled.error_code,
        settled.status,
    )
    assert told == expected
    is_billed = expected.outcome in (_COMPLETED, _CANCELLED, _TIMED_OUT)
    billed = expected.usage if is_billed else NOTHING
    assert (settled.billed, settled.cost_picos) == (billed, billed.input + 2 * billed.output)
    assert settled.unknown_bound == (_BOUND if expected.source is _UNKNOWN else None)
    assert on.free == 1000 - settled.cost_picos
    if expected.error_code is not None:
        assert f'"billed_tokens":{billed.total}'.encode() in on.body
        assert str(settled.request_id).encode() in on.body
        assert b"[DONE]" not in on.body


def test_every_outcome_but_lost_is_reached_in_every_way() -> None:
    """Lost is what the settler says of a process that died."""
    reached = {(expected.outcome, expected.source) for _, _, _, expected in _ALL}
    assert {outcome for outcome, _ in reached} == set(Outcome) - {Outcome.LOST}
    assert {source for _, source in reached} == set(UsageSource) - {UsageSource.TOKENIZER}
